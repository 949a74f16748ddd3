"""The table of the usage ledger, and the statement that adds to it.

| table | one row |
|---|---|
| `…_usage` | the usage of one model by one agent in one run |

Rows outlive their session: its id is then set to NULL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Date,
    Index,
    Insert,
    MetaData,
    Table,
    UniqueConstraint,
    insert,
)

from agents_session_metadata.core.definitions import (
    ColumnTypes,
    TableGroup,
    derived_name,
    ending_with_session,
    session_link,
    table_options,
)
from agents_session_metadata.dialects.sqltypes import RowId
from agents_session_metadata.keys import OWNER_ID
from agents_session_metadata.types import MAX_KEY_LENGTH, JSONValue
from agents_session_metadata.values import SEARCH_KEY_BYTES, json_text, search_key, storable_text

USAGE = "usage"

COST_UNIT = Decimal("1e-12")
"""The ledger stores costs as whole numbers of this unit."""

COUNTERS = (
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "total_tokens",
)
"""The columns that are added up, besides the cost."""

_DIGEST_BYTES = hashlib.sha256().digest_size


class UsageEntry(NamedTuple):
    """`counts` is in the order of `COUNTERS`. `cost` is None if the model has no price."""

    agent: str | None
    model: str | None
    counts: tuple[int, ...]
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
    table: Table,
    entries: Iterable[UsageEntry],
    *,
    session_id: str | None,
    owner: JSONValue,
    day: date,
) -> None:
    key = owner_key(owner)
    whose = {
        "session_id": session_id,
        "owner_key": key,
        "owner_id": None if key is None else json_text(OWNER_ID, owner),
        "day": day,
    }
    rows = [
        {
            **whose,
            "agent": _named(entry.agent),
            "model": _named(entry.model),
            "cost": None if entry.cost is None else round(entry.cost / COST_UNIT),
            **dict(zip(COUNTERS, entry.counts, strict=True)),
        }
        for entry in entries
    ]
    if rows:
        connection.execute(_insertion(table), rows)


@lru_cache(maxsize=256)
def _insertion(table: Table) -> Insert:
    return insert(table).inline()  # Nobody reads the id of the row.


def _named(name: str | None) -> str | None:
    return None if name is None else storable_text(name[:MAX_KEY_LENGTH])


def define(
    metadata: MetaData, core: TableGroup, names: tuple[str, ...], types: ColumnTypes
) -> TableGroup:
    [name] = names
    sessions = core.tables[0]
    usage = Table(
        name,
        metadata,
        Column("id", RowId, primary_key=True, autoincrement=True),
        Column("session_id", types.own_id, nullable=True),
        Column("owner_key", types.search, nullable=True),
        # The JSON text of what the session had under the key `owner_id` at that time.
        Column("owner_id", types.text, nullable=True),
        Column("day", Date, nullable=False),
        Column("agent", types.key, nullable=True),
        Column("model", types.key, nullable=True),
        *(Column(counter, BigInteger, nullable=False) for counter in COUNTERS),
        # In units of 10 ** -12; NULL if the model has no price.
        Column("cost", BigInteger, nullable=True),
        session_link(name, sessions, "SET NULL"),
        Index(derived_name(name, "_owner_idx"), "owner_key", "day"),
        # A constraint, not an index: MySQL's foreign key needs it as long as the table exists.
        UniqueConstraint("session_id", "id", name=derived_name(name, "_session_key")),
        Index(derived_name(name, "_day_idx"), "day"),
        **table_options(types),
        keep_existing=True,
    )
    return TableGroup(USAGE, (usage,), (ending_with_session(sessions, usage, keeps_rows=True),))
