"""Indexes of sessions by activity, which the database keeps up to date by triggers."""
