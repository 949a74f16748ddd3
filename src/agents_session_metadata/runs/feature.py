"""What runs add to the core: their table, and that it depends on the history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    bindparam,
    delete,
    exists,
    not_,
    or_,
    select,
)

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import Feature
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import SessionPausedError
from agents_session_metadata.query.logic import Condition, Context

from .tables import PAUSED, define


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
