"""Logs committed changes: one line per session and transaction, with keys and without values."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import Literal, TypeAlias

from sqlalchemy import Connection

from agents_session_metadata.text import quoted

logger: logging.Logger = logging.getLogger("agents_session_metadata.changes")

Action: TypeAlias = Literal["created", "set", "removed", "deleted"]

_LONGEST = 2_000
"""More than an id or a key has, also if every character is escaped."""

_noted: weakref.WeakKeyDictionary[Connection, dict[str, dict[Action, set[str]]]] = (
    weakref.WeakKeyDictionary()
)


def is_logged() -> bool:
    return logger.isEnabledFor(logging.DEBUG)


def note(connection: Connection, action: Action, session_id: str, keys: Iterable[str] = ()) -> None:
    """Remembers a change until its transaction is committed; afterwards it is logged."""
    if is_logged():
        changes = _noted.setdefault(connection, {}).setdefault(session_id, {})
        changes.setdefault(action, set()).update(keys)


def log_committed(connection: Connection) -> None:
    for session_id, actions in _noted.pop(connection, {}).items():
        parts = (
            " ".join([action, ", ".join(_whole(key) for key in sorted(keys))]).rstrip()
            for action, keys in actions.items()
        )
        logger.debug("session %s: %s", _whole(session_id), "; ".join(parts))


def _whole(name: str) -> str:
    return quoted(name, longest=_LONGEST)
