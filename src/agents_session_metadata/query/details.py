"""What is read of sessions besides their columns and metadata."""

from __future__ import annotations

from typing import NamedTuple


class Details(NamedTuple):
    """What a statement reads of each session.

    Attributes:
        count_items: Whether to count its items.
        preview: Whether to read the beginning of its first user message.
    """

    count_items: bool = False
    preview: bool = False


NOTHING_ELSE = Details()
