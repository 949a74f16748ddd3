"""Erases a person: sessions, and everything that is stored about them."""
