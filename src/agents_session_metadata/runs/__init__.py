"""Runs that wait for an approval: their rows, decisions, claims and stored states."""
