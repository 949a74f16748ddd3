"""The usage ledger, prices and statistics."""
