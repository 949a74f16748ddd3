"""Text search: `feature` stores the normalized words of each item, and `query` finds them."""
