"""Text search: the normalized words of each item, and queries that find substrings of them."""
