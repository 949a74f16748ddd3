"""Questions about many sessions."""
