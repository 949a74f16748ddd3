"""Search in messages and titles."""
