"""Histories: pages of items, rewinding, and which items belong together."""
