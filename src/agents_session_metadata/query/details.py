"""The optional details of sessions that a statement reads."""

from __future__ import annotations

from typing import NamedTuple


class Details(NamedTuple):
    """With `preview`, the beginning of the first user message is read."""

    count_items: bool = False
    preview: bool = False


NOTHING_ELSE = Details()
