"""Usage: `feature` is the ledger, which also adds up, and `prices` has prices.

Trackers also write totals to metadata, which `statistics` adds up without the ledger.
"""
