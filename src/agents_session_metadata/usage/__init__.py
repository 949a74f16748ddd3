"""Statistics and usage over many sessions."""
