"""What runs add to the core: one row per session whose run waits to be resumed.

| column | content |
|---|---|
| `state` | the SDK's `RunState`, as JSON or encrypted |
| `details` | JSON: the agent, the calls that it waits for, and how the state is stored |
| `decisions` | JSON: what was decided about calls, by call id |
| `item_count`, `last_item` | the history that the state belongs to |
| `revision` | counts the changes of the row, from a random number |
| `paused_at` | microseconds since 1970 |
| `token`, `claimed_until` | who has claimed the run, and until when |

A row is deleted with its session. All times come from the database's clock. The caller locks the
session before writing its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    exists,
    not_,
    or_,
    select,
)

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import (
    ColumnTypes,
    TableGroup,
    derived_name,
    ending_with_session,
    session_link,
    table_options,
)
from agents_session_metadata.core.features import Feature
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import SessionPausedError
from agents_session_metadata.query.logic import Condition, Context

PAUSED = "paused"


def define(
    metadata: MetaData, core: TableGroup, names: tuple[str, ...], types: ColumnTypes
) -> TableGroup:
    [name] = names
    options = table_options(types)
    sessions = core.tables[0]
    table = metadata.tables.get(name)
    if table is None:
        table = Table(
            name,
            metadata,
            Column("session_id", types.own_id, primary_key=True),
            Column("state", types.text, nullable=False),
            Column("details", types.text, nullable=False),
            Column("decisions", types.text, nullable=False),
            Column("item_count", Integer, nullable=False),
            Column("last_item", BigInteger, nullable=True),
            Column("revision", Integer, nullable=False),
            Column("paused_at", BigInteger, nullable=False),
            Column("token", String(32), nullable=True),
            Column("claimed_until", BigInteger, nullable=True),
            session_link(name, sessions),
            Index(derived_name(name, "_order_idx"), "paused_at", "session_id"),
            **options,
        )
    return TableGroup(PAUSED, (table,), (ending_with_session(sessions, table),))


@dataclass(frozen=True)
class NotPausedSince(Condition):
    """No run of the session was paused within this time or is claimed, by the database's clock."""

    age: timedelta
    is_of_feature: ClassVar[bool] = True

    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        # No clock is so old.
        return {name: min(self.age // timedelta(microseconds=1), 2**62)}

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        runs = context.tables.group(PAUSED).tables[0].alias()
        now = context.dialect.now()
        is_recent = runs.c.paused_at > now - bindparam(name, type_=BigInteger)
        waiting = or_(is_recent, runs.c.claimed_until > now)
        recent = exists().where(runs.c.session_id == session_id, waiting)
        return not_(recent.correlate(getattr(session_id, "table", None)))

    def encoded(self) -> list[Any]:
        return ["not_paused_since", self.age // timedelta(microseconds=1)]


def _hold(database: Database[Any], connection: Connection, session_id: str) -> Exception | None:
    [table] = database.tables.group(PAUSED).tables
    found = select(table.c.session_id).where(table.c.session_id == session_id)
    is_paused = connection.execute(found).first() is not None
    return SessionPausedError(session_id) if is_paused else None


def _end(database: Database[Any], connection: Connection, session_id: str) -> None:
    [table] = database.tables.group(PAUSED).tables
    connection.execute(delete(table).where(table.c.session_id == session_id))


FEATURE = Feature(PAUSED, ("_paused",), define, hold=_hold, end=_end, spared=NotPausedSince)
