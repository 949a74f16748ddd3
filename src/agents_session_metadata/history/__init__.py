"""Retention, transfer, forks, histories and indexes."""
