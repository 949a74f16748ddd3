"""The optional details of sessions that a statement reads, previews among them.

A preview is the beginning of the first user message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Table, case, func, literal_column, or_, select

from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, literal_number
from agents_session_metadata.text import texts_of
from agents_session_metadata.values import utf8_text

LENGTH = 200
ROWS = 10
"""Items per session that are searched for the first user message."""
HEAD = 4_000
"""Characters of an item that are read."""

_USER = ('"role":"user"', '"role": "user"')
"""Substrings of each user message; within a JSON string, the quotes would be escaped."""


class Details(NamedTuple):
    """The `keys` to read, or all; and, with `newest_item`, the id of the newest item."""

    keys: tuple[str, ...] | None = None
    count_items: bool = False
    preview: bool = False
    newest_item: bool = False

    @property
    def shape(self) -> Details:
        """Without the names of keys, which are parameters; only their number matters."""
        count = min(len(self.keys or ()), Dialect.many + 1)
        return self._replace(keys=("",) * count) if self.keys else self

    def parameters(self, dialect: Dialect) -> dict[str, Any]:
        return dialect.list_parameters("keys", self.keys) if self.keys else {}


METADATA = Details()
NO_METADATA = Details(keys=())


def first_message(
    tables: SessionTables, dialect: Dialect, sessions: FromClause
) -> ColumnElement[Any]:
    """Returns NULL for a row of `sessions` that has no user message."""
    # Neither the rest of the history is read nor the rest of a long message.
    if dialect.stops_early:
        return _up_to_last_row(tables.messages, sessions)
    return _of_first_rows(tables.messages, dialect, sessions)


def _up_to_last_row(messages: Table, sessions: FromClause) -> ColumnElement[Any]:
    """Stops at a user message, or at the last row that is searched."""
    rows = messages.alias("beginning")
    is_user = _is_user(rows.c.message_data)
    last = _in_order(messages, sessions).with_only_columns(messages.c.id)
    last = last.limit(literal_number(1)).offset(literal_number(ROWS - 1))
    found: ColumnElement[Any] = (
        _in_order(rows, sessions)
        .with_only_columns(case((is_user, _head(rows.c.message_data))))
        .where(or_(is_user, rows.c.id == last.scalar_subquery()))
        .limit(literal_number(1))
        .scalar_subquery()
    )
    return found


def _of_first_rows(messages: Table, dialect: Dialect, sessions: FromClause) -> ColumnElement[Any]:
    rows = _in_order(messages, sessions).limit(literal_number(ROWS)).subquery("beginning")
    first = (
        select(_head(rows.c.message_data))
        .where(_is_user(dialect.by_code_point(rows.c.message_data, native=False)))
        .order_by(rows.c.created_at, rows.c.id)
        .limit(literal_number(1))
    )
    return first.correlate(sessions).scalar_subquery()


def _in_order(messages: FromClause, sessions: FromClause) -> Any:
    # MySQL reads the index in order only if the order names all of its columns.
    order = messages.c.session_id, messages.c.created_at, messages.c.id
    return (
        select(messages.c.id, messages.c.created_at, messages.c.message_data)
        .where(messages.c.session_id == sessions.c.session_id)
        .order_by(*order)
        .correlate(sessions)
    )


def _is_user(text: Any) -> Any:
    return or_(*(text.like(literal_column(f"'%{part}%'")) for part in _USER))


def _head(text: Any) -> Any:
    return func.substr(text, literal_number(1), literal_number(HEAD))


_TEXT = re.compile(r'"(?:content|text)":\s*"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)')
"""The text of a message, in its JSON text."""
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)("\s*:|"|\\?$)|[\[{]|[\]}]')
"""A string, which may be a key or cut, or the beginning or the end of an object or a list."""


def _is_message_of_user(head: str) -> bool:
    """Reads the role and the type of an item, and not of objects inside, from cut JSON text."""
    found, depth, key = dict[str, str](), 0, ""
    for token in _TOKEN.finditer(head):
        text, end = token.groups()
        if text is None:
            depth += 1 if token[0] in "[{" else -1
        elif depth == 1 and end.endswith(":"):
            key = text
        elif depth == 1:
            found[key] = text
    return found.get("role", "user") == "user" and found.get("type", "message") == "message"


def preview_of(head: str) -> str | None:
    """`head` is the beginning of the JSON text. Returns None if the message has no text."""
    texts: Iterable[str] = (json.loads(f'"{text}"', strict=False) for text in _TEXT.findall(head))
    if len(head) < HEAD:
        try:
            item = json.loads(head)
        except (ValueError, RecursionError):
            return None
        if not isinstance(item, dict) or item.get("role") != "user":
            return None
        texts = texts_of(item.get("content"))
    elif not _is_message_of_user(head):
        return None
    collapsed = " ".join(" ".join(texts).split())[:LENGTH].rstrip()
    # It may hold half of a character, cut or stored so.
    return utf8_text(collapsed) or None
