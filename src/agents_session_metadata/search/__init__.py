"""Text search: `words` says what a word is, `query` parses and matches, `pages` finds the hits.

`feature` stores the normalized words of each item, and `statements` builds the SQL.
"""
