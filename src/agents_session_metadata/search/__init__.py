"""The tokenizer of text search. Nothing searches with it yet."""
