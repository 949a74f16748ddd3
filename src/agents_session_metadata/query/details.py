"""The optional details of sessions that a statement reads."""

from __future__ import annotations

from typing import NamedTuple


class Details(NamedTuple):
    """With `preview`, the beginning of the first user message is read.

    With `newest_item`, the id of the newest item is read.
    """

    count_items: bool = False
    preview: bool = False
    newest_item: bool = False


NOTHING_ELSE = Details()
