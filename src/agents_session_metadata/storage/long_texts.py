"""Splitting long texts into words beside the event loop, so that other tasks go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.util import await_only

T = TypeVar("T")

_LONG = 10_000
"""Characters from which a thread costs less than what the other tasks would wait for."""


def apply_to_text(function: Callable[[str], T], text: str) -> T:
    """Call a function with a text, in a thread if that is long.

    To be called in SQLAlchemy's greenlet, as all work on a connection is.
    """
    if len(text) < _LONG:
        return function(text)
    return await_only(asyncio.to_thread(function, text))
