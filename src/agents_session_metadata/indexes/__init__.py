"""Indexes: `create` creates, drops and lists them, and `read` reads pages from them.

The index of a key is in `key_index`, with `tables` and `triggers`. `$updated_at` is an SQL index,
and `$text` is in `search`.
"""
