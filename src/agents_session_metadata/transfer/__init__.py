"""Whole sessions: export, import, fork and retention."""
