"""Statements with parameters that find, page and count sessions.

A statement is built once for all conditions of one shape, and cached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Table

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, Statement

from .conditions import Exists
from .details import METADATA, Details
from .logic import All, Condition, Context, Parameters
from .ordering import Ordering, Position
from .statements import MISSING, Builder


class Query(NamedTuple):
    statement: Statement
    parameters: Parameters


class Queries:
    """Use `queries_of`, which makes one per set of tables, dialect and `native_ids`."""

    _CACHED = 1000

    def __init__(self, dialect: Dialect, tables: SessionTables, native_ids: bool) -> None:
        self.dialect = dialect
        self.tables = tables
        self._context = Context(dialect, tables, native_ids)
        self._statements: dict[Any, Statement] = {}
        self._lock = threading.Lock()

    def find(self, condition: Condition, limit: int | None) -> Query:
        """Returns the most recently active sessions first."""
        parameters = {} if limit is None else {"limit": limit}
        return self.query(Builder.find, condition, parameters, limited=limit is not None)

    def count(self, condition: Condition) -> Query:
        return self.query(Builder.count, condition, {})

    def ids(self, condition: Condition, *, after: str | None, limit: int) -> Query:
        parameters = {"limit": limit, **({} if after is None else {"after_id": after})}
        return self.query(Builder.ids, condition, parameters, walk=after is not None)

    def page(
        self,
        condition: Condition,
        ordering: Ordering,
        *,
        limit: int,
        after: Position | None = None,
        details: Details = METADATA,
        pieces: int = 1,
    ) -> Query:
        """Returns a row per session and key, in one statement.

        `pieces` is the number of parts by which long values are sorted if the database cannot sort
        by the whole value.
        """
        parameters: Parameters = {"limit": limit, **details.parameters(self.dialect)}
        if ordering.key is not None:
            parameters["order_key"] = ordering.key
            value = after and (after.value or (MISSING[ordering.descending], b""))
            parameters.update(zip(("after_key", "after_rest"), value or (), strict=False))
        if after is not None:
            parameters.update(after.parameters())
        return self.query(
            Builder.page,
            condition,
            parameters,
            ordering=ordering.shape,
            beyond=after is not None,
            pieces=pieces,
            details=details.shape,
        )

    def last(self, condition: Condition, details: Details) -> Query:
        """Within one tick of the clock, the session with the newest message is the last one."""
        parameters = details.parameters(self.dialect)
        return self.query(Builder.last, condition, parameters, details=details.shape)

    def last_of_each(self, key: str, condition: Condition, limit: int) -> Query:
        having = All((condition, Exists(key)))
        return self.query(Builder.last_of_each, having, {"each_key": key, "limit": limit})

    def count_values(self, key: str, condition: Condition, limit: int, *, pieces: int = 1) -> Query:
        """Counts the elements of lists one by one."""
        parameters = {"counted_key": key, "limit": limit}
        return self.query(Builder.count_values, condition, parameters, pieces=pieces)

    def where(
        self, statement: Statement, condition: Condition, session_id: ColumnElement[str]
    ) -> Query:
        """Restricts a statement to the session with this id, if the condition holds for it."""
        builder = Builder(self._context, condition)
        shape = ("where", session_id), condition.shape()
        truth = self._statements.get(shape)
        if truth is None:
            truth = builder.truth(session_id)
            # An alias is another one in each call.
            if isinstance(getattr(session_id, "table", None), Table):
                self._keep(shape, truth)
        return Query(statement.where(truth), builder.parameters())

    def query(
        self,
        build: Callable[..., Statement],
        condition: Condition,
        parameters: Parameters,
        make: type[Builder] = Builder,
        **shape: Hashable,
    ) -> Query:
        """Builds a statement by a method of a builder, or takes it from the cache.

        `shape` must contain everything besides the shape of the condition that changes its text.
        """
        kind = build, *shape.values(), condition.shape()
        builder = make(self._context, condition)
        statement = self._statements.get(kind)
        if statement is None:
            statement = build(builder, **shape)
            self._keep(kind, statement)
        return Query(statement, {**builder.parameters(), **parameters})

    def _keep(self, shape: Any, built: Any) -> None:
        with self._lock:
            if len(self._statements) >= self._CACHED:
                del self._statements[next(iter(self._statements))]
            self._statements[shape] = built


_cached = lru_cache(maxsize=256)(Queries)


def queries_of(database: Database) -> Queries:
    """Must be called after the tables were checked, as by all work of the database."""
    return _cached(database.dialect, database.tables, database.native_ids)
