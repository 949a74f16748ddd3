"""Retention, transfer and forks."""
