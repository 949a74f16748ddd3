"""The usage ledger: its table, and what adds to it, reads it and deletes from it.

| table | one row |
|---|---|
| `…_usage` | the usage of one model by one agent in one run |

Rows outlive their session: its id is then set to NULL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Date,
    Index,
    Insert,
    Numeric,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    false,
    func,
    insert,
    literal_column,
    or_,
    select,
    type_coerce,
    update,
)

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import TableMaker, derived_name
from agents_session_metadata.core.features import Erased, Feature
from agents_session_metadata.core.messages import in_order
from agents_session_metadata.dialects._dialect import Statement
from agents_session_metadata.keys import OWNER_ID
from agents_session_metadata.query.pages import check_limit
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted
from agents_session_metadata.types import MAX_KEY_LENGTH, USAGE_FIELDS, JSONValue, UsageRow
from agents_session_metadata.values import (
    SEARCH_KEY_BYTES,
    check_id_type,
    decode_value,
    is_text,
    json_text,
    search_key,
    storable_text,
)

from .prices import MONEY, Tokens, plain_cost

USAGE = "usage"

_DECIMALS = 12
"""Costs with up to so many decimals are stored as whole numbers of 64 bits, if they fit."""

_BILLION = 10**9
_BATCH = 1000
"""Rows deleted per transaction."""
_MOST_GROUPS = 100
"""The greatest limit of groups: each is a condition of a statement."""

_DIGEST_BYTES = hashlib.sha256().digest_size


class UsageEntry(NamedTuple):
    """`cost` is None if the model has no price."""

    agent: str | None
    model: str | None
    counts: Tokens
    cost: Decimal | None


def owner_key(owner: JSONValue) -> bytes | None:
    """Equal owners have equal keys, which are short enough for an index."""
    if owner is None:
        return None
    key = search_key(owner)
    if not key.rest:
        return key.indexed
    digest = hashlib.sha256(key.indexed + key.rest).digest()
    return key.indexed[: SEARCH_KEY_BYTES - _DIGEST_BYTES] + digest


def add_usage(
    connection: Connection,
    store: ScopedStore,
    entries: Iterable[UsageEntry],
    session_id: str | None,
    owner: JSONValue,
    *,
    is_placed: bool = True,
) -> None:
    """If not `is_placed`, the rows belong to no item until `place_usage` is called."""
    key = owner_key(owner)
    shared = {
        "session_id": session_id,
        "owner_key": key,
        "owner_id": None if key is None else json_text(OWNER_ID, owner),
        "day": datetime.now(timezone.utc).date(),
        "history_of": session_id if is_placed else None,
    }
    rows = [
        {
            **shared,
            "agent": _named(entry.agent),
            "model": _named(entry.model),
            **_stored_cost(entry.cost),
            **entry.counts._asdict(),
        }
        for entry in entries
    ]
    if rows:
        connection.execute(_insertion(_ledger(store), store.database.tables.messages), rows)


def _stored_cost(cost: Decimal | None) -> dict[str, int | str | None]:
    """Returns a cost as a number of units if it is exactly that, else as text."""
    if cost is None:
        return {"cost": None, "exact_cost": None}
    units = MONEY.scaleb(cost, _DECIMALS)
    if -(2**63) < units < 2**63 and units == MONEY.to_integral_value(units):
        return {"cost": int(units), "exact_cost": None}
    return {"cost": None, "exact_cost": f"{MONEY.normalize(cost):f}"}


@lru_cache(maxsize=256)
def _insertion(table: Table, messages: Table) -> Insert:
    newest = (
        select(messages.c.id)
        .where(messages.c.session_id == bindparam("history_of"))
        .order_by(*in_order(messages, newest_first=True))
        .limit(1)
        .scalar_subquery()
    )
    # Inline, because the id of the row is not read.
    return insert(table).values(item_id=newest).inline()


def newest_usage(connection: Connection, store: ScopedStore, session_id: str) -> int:
    """Returns the id of the newest row of a session, or 0 without one."""
    usage = _ledger(store)
    newest: Any = select(func.max(usage.c.id)).where(usage.c.session_id == session_id)
    return connection.scalar(newest) or 0


def place_usage(connection: Connection, store: ScopedStore, session_id: str, after: int) -> None:
    """Sets the item of the rows after a row that have none to the newest item of the session."""
    usage, messages = _ledger(store), store.database.tables.messages
    newest: Any = select(func.max(messages.c.id + 0)).where(messages.c.session_id == session_id)
    rows = update(usage).where(usage.c.session_id == session_id, usage.c.id > after)
    connection.execute(
        rows.where(usage.c.item_id.is_(None)).values(item_id=newest.scalar_subquery())
    )


def _named(name: str | None) -> str | None:
    return name and storable_text(name[:MAX_KEY_LENGTH])


# ---- reading and deleting ----


async def read_usage(
    store: ScopedStore,
    *,
    owner_id: JSONValue,
    session_id: str | None,
    by: Sequence[str],
    since: date | None,
    until: date | None = None,
    limit: int | None = None,
) -> list[UsageRow]:
    fields = check_by(by)
    if limit is not None:
        check_limit(limit, _MOST_GROUPS)
    if session_id is not None:
        check_id_type(session_id)
    usage = _ledger(store)
    if owner_id is not None:
        json_text(OWNER_ID, owner_id)
    conditions = _conditions(usage, session_id, owner_id, since, until)
    if session_id is not None and not is_text(session_id):
        return []
    columns = [usage.c.owner_key if name == "owner_id" else usage.c[name] for name in fields]
    grouped = columns if "model" in fields else [*columns, usage.c.model]
    statement = select(*grouped, *_totals(usage)).where(*conditions).group_by(*grouped)
    exact = select(*columns, usage.c.exact_cost).where(*conditions, usage.c.exact_cost.is_not(None))

    def read(connection: Connection) -> list[UsageRow]:
        chosen = []
        if limit is not None and columns:
            greatest = select(*columns).where(*conditions).group_by(*columns).limit(limit)
            greatest = greatest.order_by(_total_cost(usage).desc(), *columns)
            groups = connection.execute(*_within(store, greatest, usage)).all()
            chosen.append(or_(false(), *(_is_group(columns, each) for each in groups)))
        rows = connection.execute(*_within(store, statement.where(*chosen), usage)).all()
        has_exact = any(row.exact for row in rows)
        those = exact.where(*chosen)
        costs = connection.execute(*_within(store, those, usage)).all() if has_exact else ()
        return _rows(fields, rows, costs)

    return await store.database.read_used(USAGE, read, [])


async def delete_usage(store: ScopedStore, *, before: date) -> int:
    usage, day = _ledger(store), day_of("before", before)
    old = select(usage.c.id).where(usage.c.day < day).limit(_BATCH)

    def delete_some(connection: Connection) -> int:
        ids = connection.scalars(*_within(store, old, usage)).all()
        if ids:
            connection.execute(delete(usage).where(usage.c.id.in_(ids)))
        return len(ids)

    deleted = 0
    while count := await store.database.write(delete_some, group=USAGE):
        deleted += count
    return deleted


def _anonymize(connection: Connection, usage: Table, those: ColumnElement[bool]) -> dict[str, int]:
    """Keeps the numbers of some rows. Returns how many rows there are."""
    names = "session_id", "owner_key", "owner_id", "item_id"
    changed = update(usage).where(those).values(dict.fromkeys(names))
    return {usage.name: connection.execute(changed).rowcount}


def check_by(by: Any) -> tuple[str, ...]:
    if isinstance(by, (str, bytes)) or not isinstance(by, Iterable):
        raise TypeError(f"by must be a tuple of names, such as ('day', 'model'), got {quoted(by)}")
    fields = tuple(by)
    for name in fields:
        if name not in USAGE_FIELDS:
            raise ValueError(f"by must name {', '.join(USAGE_FIELDS)}, got {quoted(name)}")
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
    until: date | None,
) -> list[ColumnElement[bool]]:
    conditions = []
    if session_id is not None:
        conditions.append(usage.c.session_id == session_id)
    if owner_id is not None:
        conditions.append(usage.c.owner_key == owner_key(owner_id))
    if since is not None:
        conditions.append(usage.c.day >= day_of("since", since))
    if until is not None:
        conditions.append(usage.c.day <= day_of("until", until))
    return conditions


def day_of(name: str, moment: object) -> date:
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise ValueError(f"{name} must have a time zone, got {moment.isoformat()}")
        return moment.astimezone(timezone.utc).date()
    if not isinstance(moment, date):
        raise TypeError(f"{name} must be a date or a datetime, got {type(moment).__name__}")
    return moment


def _within(
    store: ScopedStore, statement: Statement, usage: Table
) -> tuple[Statement, dict[str, Any]]:
    """Restricts a statement to the scope: to an owner's rows by owner, otherwise by session."""
    values = store.scope.values
    if OWNER_ID in values:
        statement = statement.where(usage.c.owner_key == owner_key(values[OWNER_ID]))
    if set(values) <= {OWNER_ID} and not store.scope.filters:
        return statement, {}
    return store.question(statement, usage.c.session_id)


def _totals(usage: Table) -> list[ColumnElement[Any]]:
    # Billions and remainders apart do not overflow SQLite's integers, of 64 bits.
    rest: Any = usage.c.cost % _BILLION
    # A multiple of the divisor: on MySQL, a quotient has four decimals.
    billions = (usage.c.cost - rest) // _BILLION
    is_unpriced = and_(usage.c.cost.is_(None), usage.c.exact_cost.is_(None))
    unpriced = func.sum(case((is_unpriced, 1), else_=0))
    owner = func.min(type_coerce(usage.c.owner_id, Text))
    return [
        owner.label("owner"),
        unpriced.label("none"),
        func.count(usage.c.exact_cost).label("exact"),
        func.sum(billions).label("billions"),
        func.sum(rest).label("rest"),
        *(func.sum(usage.c[name]).label(name) for name in Tokens._fields),
    ]


def _total_cost(usage: Table) -> ColumnElement[Any]:
    """Returns about the cost of a group, to sort by."""
    # As floats, or exact on PostgreSQL: a sum of whole numbers can overflow SQLite's integers.
    units: Any = func.sum(usage.c.cost * literal_column("1e0"))
    exact: Any = func.sum(cast(usage.c.exact_cost, Numeric(65, 30)))
    return func.coalesce(units, 0) + func.coalesce(exact, 0) * literal_column(f"1e{_DECIMALS}")


def _is_group(columns: Sequence[ColumnElement[Any]], group: Sequence[Any]) -> ColumnElement[bool]:
    pairs = zip(columns, group, strict=True)
    return and_(*(column.is_not_distinct_from(value) for column, value in pairs))


def _rows(fields: tuple[str, ...], found: Iterable[Any], exact: Iterable[Any]) -> list[UsageRow]:
    """`exact` has costs that are not among the totals."""
    totals: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        total = totals.setdefault(tuple(row[: len(fields)]), {"cost": None, "unpriced": set()})
        for name in fields:
            total[name] = getattr(row, "owner" if name == "owner_id" else name)
        for name in Tokens._fields:
            total[name] = total.get(name, 0) + int(getattr(row, name))
        if row.rest is not None:
            units = int(row.billions) * _BILLION + int(row.rest)
            cost = MONEY.scaleb(Decimal(units), -_DECIMALS)
            total["cost"] = MONEY.add(total["cost"] or 0, cost)
        if int(row.none):
            total["unpriced"].add(row.model)
    for *group, cost in exact:
        total = totals[tuple(group)]
        total["cost"] = MONEY.add(total["cost"] or 0, Decimal(cost))
    for total in totals.values():
        if total.get("owner_id") is not None:
            total["owner_id"] = decode_value(total["owner_id"])
        if total["cost"] is not None:
            total["cost"] = plain_cost(total["cost"])
        total["unpriced"] = tuple(sorted(total["unpriced"], key=_text_order))
    rows = [UsageRow(**total) for total in totals.values()]
    return sorted(rows, key=lambda row: [_text_order(_sortable(row, name)) for name in fields])


def _sortable(row: UsageRow, name: str) -> Any:
    return f"{row.item_id:20}" if name == "item_id" and row.item_id else getattr(row, name)


def _text_order(value: Any) -> tuple[bool, str]:
    """Sorts None first. The text of a day sorts as the day."""
    return value is not None, str(value)


# ---- the feature ----


class UsageFeature(Feature):
    name = USAGE
    suffixes: ClassVar[tuple[str, ...]] = ("_usage",)

    def define(self, make: TableMaker) -> None:
        [name], types = make.names, make.types
        make.kept(
            name,
            Column("owner_key", types.search, nullable=True),
            # The JSON text of what the session had under the key `owner_id` at that time.
            Column("owner_id", types.text, nullable=True),
            Column("day", Date, nullable=False),
            Column("agent", types.key, nullable=True),
            Column("model", types.key, nullable=True),
            # The session's newest item when the row was written, which belongs to the run's turn.
            Column("item_id", BigInteger, nullable=True),
            *(Column(counter, BigInteger, nullable=False) for counter in Tokens._fields),
            # In units of 10 ** -12; NULL if the model has no price, or with an `exact_cost`.
            Column("cost", BigInteger, nullable=True),
            # A cost that is too large for units, or has more decimals.
            Column("exact_cost", Text, nullable=True),
            Index(derived_name(name, "_owner_idx"), "owner_key", "day"),
            Index(derived_name(name, "_day_idx"), "day"),
        )

    def erase(
        self, database: Database, connection: Connection, ids: Sequence[str], erased: Erased
    ) -> Mapping[str, int]:
        if not erased.keeps_usage:
            return super().erase(database, connection, ids, erased)
        usage = database.tables.group(USAGE).tables[0]
        return _anonymize(connection, usage, usage.c.session_id.in_(ids))

    def erase_rest(
        self, database: Database, connection: Connection, erased: Erased
    ) -> Mapping[str, int]:
        if erased.owner is None:
            return {}
        usage = database.tables.group(USAGE).tables[0]
        own = usage.c.owner_key == owner_key(decode_value(erased.owner))
        if erased.keeps_usage:
            return _anonymize(connection, usage, own)
        ids = connection.scalars(select(usage.c.id).where(own).limit(_BATCH)).all()
        return {usage.name: connection.execute(delete(usage).where(usage.c.id.in_(ids))).rowcount}


FEATURE = UsageFeature()
