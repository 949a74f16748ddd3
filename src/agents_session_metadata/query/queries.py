"""Statements with parameters that find, page and count sessions.

A statement is built once for all conditions of one shape, and cached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, Table

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, Statement

from .logic import Condition, Context, Parameters
from .statements import Builder


class BoundStatement(NamedTuple):
    statement: Statement
    parameters: Parameters


class Queries:
    """Use `queries_of`, which makes one per set of tables and dialect."""

    _CACHED = 1000

    def __init__(self, dialect: Dialect, tables: SessionTables) -> None:
        self.dialect = dialect
        self.tables = tables
        self._context = Context(dialect, tables)
        self._statements: dict[Any, Statement] = {}
        self._lock = threading.Lock()

    def ids(self, condition: Condition, *, after: str | None, limit: int) -> BoundStatement:
        parameters = {"limit": limit, **({} if after is None else {"after_id": after})}
        return self.query(Builder.ids, condition, parameters, walk=after is not None)

    def where(
        self, statement: Statement, condition: Condition, session_id: ColumnElement[str]
    ) -> BoundStatement:
        """Restricts a statement to the session with this id, if the condition holds for it."""
        builder = Builder(self._context, condition)
        shape = ("where", session_id), condition.shape()
        truth = self._statements.get(shape)
        if truth is None:
            truth = builder.truth(session_id)
            # An alias is another one in each call.
            table = getattr(session_id, "table", None)
            if isinstance(table, Table) or isinstance(session_id, BindParameter):
                self._keep(shape, truth)
        return BoundStatement(statement.where(truth), builder.parameters())

    def query(
        self,
        build: Callable[..., Statement],
        condition: Condition,
        parameters: Parameters,
        make: type[Builder] = Builder,
        **shape: Hashable,
    ) -> BoundStatement:
        """Builds a statement by a method of a builder, or takes it from the cache.

        `shape` must contain everything besides the shape of the condition that changes its text.
        """
        kind = build, *shape.values(), condition.shape()
        builder = make(self._context, condition)
        statement = self._statements.get(kind)
        if statement is None:
            statement = build(builder, **shape)
            self._keep(kind, statement)
        return BoundStatement(statement, {**builder.parameters(), **parameters})

    def _keep(self, shape: Any, built: Any) -> None:
        with self._lock:
            if len(self._statements) >= self._CACHED:
                del self._statements[next(iter(self._statements))]
            self._statements[shape] = built


_cached = lru_cache(maxsize=256)(Queries)


def queries_of(database: Database) -> Queries:
    return _cached(database.dialect, database.tables)
