"""Rows that cannot be read: items, and those of paused runs, threads and the usage ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Table, case, literal_column, or_, select

from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.quoting import quoted
from agents_session_metadata.runs.records import Encryption, paused_run
from agents_session_metadata.storage.paused import PAUSED
from agents_session_metadata.storage.paused_rows import PausedRow
from agents_session_metadata.storage.stored import plain_text
from agents_session_metadata.storage.threads import THREADS
from agents_session_metadata.storage.usage import USAGE
from agents_session_metadata.values import decode_value

from .findings import Finding, Tally
from .inspection import Inspection

BATCH = 200
"""Rows that are read at a time."""

_TEXTS = ("details", "decisions", "owner_id", "owner", "data")
"""The columns of texts that are read."""
_NUMBERS = ("item_count", "last_item", "revision", "paused_at", "token", "claimed_until")
# As SQL, because a driver takes the ends of Python's calendar for infinity.
_DAYS: Any = tuple(literal_column(f"'{each}'") for each in (date.min, date.max))


class _Kind(NamedTuple):
    """Rows of one table.

    Attributes:
        table: The table.
        columns: The columns that are read, beside those of the primary key.
        is_readable: Whether a row can be read, given its values by column.
        name: Names a row, given these.
        advice: What to do about those that cannot be read.
        suspects: The condition for rows that may be wrong; None: any.
    """

    table: Table
    columns: tuple[str, ...]
    is_readable: Callable[[dict[str, Any]], bool]
    name: Callable[[dict[str, Any]], str]
    advice: str
    suspects: ColumnElement[bool] | None = None


def check_rows(inspection: Inspection) -> Iterator[Finding]:
    """Report rows that neither this package nor the SDK has written so."""
    for kind in _kinds(inspection):
        table = kind.table
        if not inspection.is_readable(table, [*table.primary_key.columns.keys(), *kind.columns]):
            continue
        wrong = Tally()
        for row in _read(inspection, kind):
            if not kind.is_readable(row):
                wrong.add(kind.name(row))
        if wrong.count:
            rows = "1 row" if wrong.count == 1 else f"{wrong.count} rows"
            problem = f"{rows} of {table.name} cannot be read: {wrong}; {kind.advice}"
            yield Finding("error", "values", problem)


def _kinds(inspection: Inspection) -> list[_Kind]:
    [paused], [usage] = (inspection.tables.group(name).tables for name in (PAUSED, USAGE))
    items, attachments = inspection.tables.group(THREADS).tables
    messages = inspection.tables.messages
    data = messages.c.message_data
    is_text = inspection.ways.not_a_text(data) is None
    return [
        _Kind(
            messages,
            ("session_id", "message_data"),
            lambda row: plain_text(row["message_data"]) is not None,
            lambda row: f"{row['id']} of session {quoted(row['session_id'])}",
            "correct it by SQL, or delete the item",
            data.is_(None) if is_text else None,
        ),
        _Kind(
            paused,
            ("details", "decisions", *_NUMBERS),
            _is_paused_run,
            lambda row: f"that of session {quoted(row['session_id'])}",
            "correct it by SQL, or discard the paused run",
        ),
        _Kind(
            usage,
            ("owner_id", "day"),
            lambda row: _is_day(row["day"]) and (row["owner_id"] is None or _is_json(row)),
            lambda row: f"the one with the id {row['id']}",
            "correct the owner or the day by SQL",
        ),
        _Kind(
            items,
            ("data",),
            lambda row: _is_object(row["data"]),
            lambda row: f"{quoted(row['item_id'])} of session {quoted(row['session_id'])}",
            "correct it by SQL, or delete the item",
        ),
        _Kind(
            attachments,
            ("owner", "data"),
            lambda row: _is_object(row["owner"]) and _is_object(row["data"]),
            lambda row: quoted(row["attachment_id"]),
            "correct or delete it by SQL",
        ),
    ]


def _read(inspection: Inspection, kind: _Kind) -> Iterator[dict[str, Any]]:
    """All rows in the order of their key."""
    key = [*kind.table.primary_key.columns]
    names = [*(column.name for column in key), *kind.columns]
    given = [_selected(inspection, kind.table, name) for name in names]
    statement: Any = select(*given).where(*(column.is_not(None) for column in key))
    if kind.suspects is not None:
        statement = statement.where(kind.suspects)
    statement = statement.order_by(*key).limit(BATCH)
    found: Any = inspection.connection.execute(statement).all()
    while found:
        yield from (dict(zip(names, row, strict=True)) for row in found)
        first, last = key[0], found[-1]
        later = [first > last[0]]
        if len(key) > 1:
            later = [first >= last[0], or_(first > last[0], key[1] > last[1])]
        found = inspection.connection.execute(statement.where(*later)).all()


def _selected(inspection: Inspection, table: Table, name: str) -> Any:
    column: Any = table.c[name]
    if name in _TEXTS:
        return inspection.stored_text(column)
    if name == "message_data":
        return inspection.ways.item_text(column)
    # A driver may refuse to read days that Python does not have.
    is_known = name == "day"
    return case((column.between(*_DAYS), inspection.stored_text(column))) if is_known else column


def _is_paused_run(row: dict[str, Any]) -> bool:
    try:
        paused_run(PausedRow(**row, now=0), Encryption())
    except CorruptMetadataError:
        return False
    return True


def _is_json(row: dict[str, Any]) -> bool:
    stored = row["owner_id"]
    try:
        decode_value(stored if isinstance(stored, str) else bytes(stored).decode())
    except (ValueError, RecursionError):
        return False
    return True


def _is_object(stored: Any) -> bool:
    try:
        return isinstance(json.loads(stored), dict)
    except (ValueError, TypeError, RecursionError):
        return False


def _is_day(stored: Any) -> bool:
    """Whether a value is a day, which some databases store as text."""
    if not isinstance(stored, bytes):
        return isinstance(stored, date)
    try:
        return date.fromisoformat(stored.decode()).isoformat().encode() == stored
    except ValueError:
        return False
