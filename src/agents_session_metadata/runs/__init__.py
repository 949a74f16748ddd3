"""Runs and phases of sessions: tracking, budgets, titles, lifecycles and paused runs."""
