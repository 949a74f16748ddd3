"""Usage: the ledger, which also adds up, and prices.

Trackers also write totals to metadata, which `statistics` adds up without the ledger.
"""
