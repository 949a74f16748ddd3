"""Benchmarks: what this package costs beside the plain SDK, a plain table and other libraries."""
