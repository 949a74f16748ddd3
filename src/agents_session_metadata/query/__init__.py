"""Filters, orders and pages of sessions, as SQL."""
