"""Requests that take effect once, however often they are sent."""
