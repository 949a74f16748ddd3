"""Usage: the ledger, which also adds up, prices, and totals of what trackers write to metadata."""
