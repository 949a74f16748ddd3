"""Reads the usage ledger, by day, agent, model, owner and session, and deletes from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    Text,
    case,
    delete,
    func,
    select,
    type_coerce,
)

from agents_session_metadata.core.rows import check_id_type
from agents_session_metadata.dialects._dialect import Statement
from agents_session_metadata.keys import OWNER_ID
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONValue, UsageRow
from agents_session_metadata.values import decode_value, is_text, json_text

from .ledger import COST_UNIT, COUNTERS, USAGE, owner_key

FIELDS = ("day", "agent", "model", "owner_id", "session_id")

_SUMMED = (*COUNTERS, "cost")
_BILLION = 10**9
_BATCH = 1000
"""Rows deleted per transaction."""


class Spent(NamedTuple):
    cost: Decimal
    tokens: int


async def read_usage(
    store: ScopedStore,
    *,
    owner_id: JSONValue,
    session_id: str | None,
    by: Sequence[str],
    since: date | None,
    until: date | None,
) -> list[UsageRow]:
    fields = check_by(by)
    if session_id is not None:
        check_id_type(session_id)
    usage = _ledger(store)
    if owner_id is not None:
        json_text(OWNER_ID, owner_id)
    conditions = _conditions(usage, session_id, owner_id, since, until)
    await store.database.ensure(USAGE)
    if session_id is not None and not is_text(session_id):
        return []
    columns = [usage.c.owner_key if name == "owner_id" else usage.c[name] for name in fields]
    grouped = columns if "model" in fields else [*columns, usage.c.model]
    statement = select(*grouped, *_totals(store, usage)).where(*conditions).group_by(*grouped)

    def read(connection: Connection, queries: Queries) -> list[UsageRow]:
        query = _within(store, queries, statement, usage)
        return _rows(fields, connection.execute(*query))

    return await store.database.read(read)


async def delete_usage(store: ScopedStore, *, before: date) -> int:
    usage, day = _ledger(store), _day("before", before)
    await store.database.ensure(USAGE)
    old = select(usage.c.id).where(usage.c.day < day).limit(_BATCH)

    def delete_some(connection: Connection, queries: Queries) -> int:
        ids = connection.scalars(*_within(store, queries, old, usage)).all()
        if ids:
            connection.execute(delete(usage).where(usage.c.id.in_(ids)))
        return len(ids)

    deleted = 0
    while count := await store.database.write(delete_some):
        deleted += count
    return deleted


async def read_spent(
    store: ScopedStore,
    *,
    since: date | None,
    session_id: str | None = None,
    owner_id: JSONValue = None,
) -> Spent:
    """Reads the usage of a session in the scope, or of an owner whatever the scope."""
    usage = _ledger(store)
    conditions = _conditions(usage, session_id, owner_id, since)
    whole_sum = store.database.dialect.whole_sum
    sums = *whole_sum(usage.c.cost), *whole_sum(usage.c.total_tokens)
    statement: Statement = select(*sums).where(*conditions)
    await store.database.ensure(USAGE)

    def read(connection: Connection, queries: Queries) -> Any:
        if session_id is None:
            return connection.execute(statement).one()
        return connection.execute(*store.question(queries, statement, usage.c.session_id)).one()

    rows = await store.database.read(read)
    return Spent(_joined(*rows[:2]) * COST_UNIT, int(_joined(*rows[2:])))


def check_by(by: Any) -> tuple[str, ...]:
    if isinstance(by, (str, bytes)) or not isinstance(by, Iterable):
        raise TypeError(f"by must be a tuple of names, such as ('day', 'model'), got {quoted(by)}")
    fields = tuple(by)
    for name in fields:
        if name not in FIELDS:
            raise ValueError(f"by must name {', '.join(FIELDS)}, got {quoted(name)}")
    if len(set(fields)) < len(fields):
        raise ValueError(f"by must not name a field twice, got {', '.join(fields)}")
    return fields


def _ledger(store: ScopedStore) -> Table:
    return store.database.tables.group(USAGE).tables[0]


def _conditions(
    usage: Table,
    session_id: str | None,
    owner_id: JSONValue,
    since: date | None,
    until: date | None = None,
) -> list[ColumnElement[bool]]:
    conditions = []
    if session_id is not None:
        conditions.append(usage.c.session_id == session_id)
    if owner_id is not None:
        conditions.append(usage.c.owner_key == owner_key(owner_id))
    if since is not None:
        conditions.append(usage.c.day >= _day("since", since))
    if until is not None:
        conditions.append(usage.c.day <= _day("until", until))
    return conditions


def _day(name: str, moment: object) -> date:
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise ValueError(f"{name} must have a time zone, got {moment.isoformat()}")
        return moment.astimezone(timezone.utc).date()
    if not isinstance(moment, date):
        raise TypeError(f"{name} must be a date or a datetime, got {type(moment).__name__}")
    return moment


def _within(
    store: ScopedStore, queries: Queries, statement: Statement, usage: Table
) -> tuple[Statement, dict[str, Any]]:
    """Restricts a statement to the scope: to an owner's rows by owner, otherwise by session."""
    values = store.scope.values
    if OWNER_ID in values:
        statement = statement.where(usage.c.owner_key == owner_key(values[OWNER_ID]))
    if set(values) <= {OWNER_ID}:
        return statement, {}
    return store.question(queries, statement, usage.c.session_id)


def _totals(store: ScopedStore, usage: Table) -> list[ColumnElement[Any]]:
    whole_sum = store.database.dialect.whole_sum
    sums = [part for name in _SUMMED for part in whole_sum(usage.c[name])]
    unpriced = func.sum(case((usage.c.cost.is_(None), 1), else_=0))
    owner = func.min(type_coerce(usage.c.owner_id, Text))
    labelled = [column.label(f"total_{number}") for number, column in enumerate(sums)]
    return [owner.label("owner"), func.count().label("number"), unpriced.label("none"), *labelled]


def _joined(billions: Any, rest: Any) -> Decimal:
    return Decimal(billions or 0) * _BILLION + Decimal(rest or 0)


def _rows(fields: tuple[str, ...], found: Iterable[Any]) -> list[UsageRow]:
    totals: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        total = totals.setdefault(tuple(row[: len(fields)]), {"cost": None, "unpriced": set()})
        for name in fields:
            total[name] = getattr(row, "owner" if name == "owner_id" else name)
        sums = row[-2 * len(_SUMMED) :]
        *counts, cost = (_joined(*sums[at : at + 2]) for at in range(0, len(sums), 2))
        for name, count in zip(COUNTERS, counts, strict=True):
            total[name] = total.get(name, 0) + int(count)
        if int(row.none) < int(row.number):
            total["cost"] = (total["cost"] or Decimal(0)) + cost * COST_UNIT
        if int(row.none):
            total["unpriced"].add(row.model)
    for total in totals.values():
        if total.get("owner_id") is not None:
            total["owner_id"] = decode_value(total["owner_id"])
        if total["cost"] is not None:
            total["cost"] = total["cost"].normalize() + 0
        total["unpriced"] = tuple(sorted(total["unpriced"], key=_text_order))
    rows = [UsageRow(**total) for total in totals.values()]
    return sorted(rows, key=lambda row: [_text_order(getattr(row, name)) for name in fields])


def _text_order(value: Any) -> tuple[bool, str]:
    """Sorts None first. The text of a day sorts as the day."""
    return value is not None, str(value)
