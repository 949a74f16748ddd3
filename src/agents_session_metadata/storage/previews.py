"""Previews of sessions: the beginning of the first user message of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, case, func, literal_column, or_, select

from agents_session_metadata.dialects._dialect import Dialect

from .tables import SessionTables

LENGTH = 200
"""Characters of a preview."""
ROWS = 10
"""Items of each session among which the first user message is looked for."""
HEAD = 4_000
"""Characters of an item that are read."""

_USER = ('"role":"user"', '"role": "user"')
"""What the text of a user message contains; within a JSON string, the quotes would be escaped."""


def read_previews(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> dict[str, str]:
    """The previews of some sessions, by their ids; sessions without one are left out."""
    if not ids:
        return {}
    statement = _statement(tables, dialect, min(len(ids), dialect.many + 1))
    found: Any = connection.execute(statement, dialect.list_parameters("ids", ids))
    previews = {session_id: preview_of(head) for session_id, head in found if head is not None}
    return {session_id: text for session_id, text in previews.items() if text is not None}


@lru_cache(maxsize=256)
def _statement(tables: SessionTables, dialect: Dialect, count: int) -> Any:
    # Neither the rest of the history is read nor the rest of a long message.
    sessions = tables.sessions
    find = _first_in_subquery if dialect.nests_correlated else _first_row_by_row
    return select(sessions.c.session_id, find(tables)).where(
        dialect.one_of(sessions.c.session_id, "ids", count)
    )


def _first_in_subquery(tables: SessionTables) -> Any:
    rows = _rows(tables).limit(literal_column(str(ROWS))).subquery("beginning")
    text = rows.c.message_data
    first = (
        select(_head(text))
        .where(_is_user(text))
        .order_by(rows.c.created_at, rows.c.id)
        .limit(literal_column("1"))
    )
    return first.correlate(tables.sessions).scalar_subquery()


def _first_row_by_row(tables: SessionTables) -> Any:
    """One subquery per row; the database stops at the first that finds a user message."""
    own = tables.messages.alias("own")
    text = own.c.message_data
    found = []
    for number in range(ROWS):
        row = _rows(tables).with_only_columns(tables.messages.c.id).limit(literal_column("1"))
        item_id = row.offset(literal_column(str(number))).scalar_subquery()
        head = select(case((_is_user(text), _head(text)))).where(own.c.id == item_id)
        found.append(head.correlate(tables.sessions).scalar_subquery())
    return func.coalesce(*found)


def _rows(tables: SessionTables) -> Any:
    messages, sessions = tables.messages, tables.sessions
    return (
        select(messages.c.id, messages.c.created_at, messages.c.message_data)
        .where(messages.c.session_id == sessions.c.session_id)
        .order_by(messages.c.created_at, messages.c.id)
        .correlate(sessions)
    )


def _is_user(text: Any) -> Any:
    return or_(*(text.like(literal_column(f"'%{part}%'")) for part in _USER))


def _head(text: Any) -> Any:
    return func.substr(text, literal_column("1"), literal_column(str(HEAD)))


def preview_of(head: str) -> str | None:
    """The preview of a user message whose JSON text begins so; None if it has no text."""
    try:
        item = json.loads(head if len(head) < HEAD else completed(head))
    except (ValueError, RecursionError):
        return None
    if not isinstance(item, dict) or item.get("role", "user") != "user":
        return None
    collapsed = " ".join(" ".join(_texts(item.get("content"))).split())[:LENGTH].rstrip()
    # Half of a character that was cut, or that somebody stored.
    shown = re.sub("[\ud800-\udfff]", "\ufffd", collapsed)
    return shown or None


def _texts(content: object) -> Iterator[str]:
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text


_STRING = re.compile(r'"(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
_LITERAL = re.compile(r"[^\s\"{}\[\],:]+")


def completed(text: str) -> str:
    """JSON text that may have been cut anywhere, completed to text that can be parsed.

    What is not JSON stays so.
    """
    closing: list[str] = []
    position = end = 0  # After `end` comes what is left out: a key without its value, for example.
    is_key = False
    while position < len(text):
        each = text[position]
        match = (_STRING if each == '"' else _LITERAL).match(text, position)
        position = match.end() if match else position + 1
        if each == '"':
            if text[position : position + 1] != '"':
                kept = text[:end] if is_key else f'{text[:position]}"'
                return kept + "".join(reversed(closing))
            position += 1
            end = end if is_key else position
        elif each in "{[":
            closing.append("}" if each == "{" else "]")
            end, is_key = position, each == "{"
        elif each in "}]":
            del closing[-1:]
            end = position
        elif each in ",:":
            is_key = each == "," and closing[-1:] == ["}"]
        elif match and position < len(text):
            end = position
    return text[:end] + "".join(reversed(closing))
