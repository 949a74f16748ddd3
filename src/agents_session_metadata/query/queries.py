"""Questions about sessions as statements with parameters: find, page, count.

A statement is built once for all conditions of one shape, and remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement

from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.storage.tables import SessionTables

from . import filters as f
from .builder import Builder
from .ordering import Ordering, Position
from .shapes import parameters_of, shape_of


class Query(NamedTuple):
    """A statement and its parameters."""

    statement: Statement
    parameters: dict[str, Any]


class Queries:
    """The queries of one set of tables in one database, each statement built once a shape."""

    _REMEMBERED = 1000

    def __init__(self, dialect: Dialect, tables: SessionTables, *, native_ids: bool) -> None:
        self.dialect = dialect
        self.tables = tables
        self.native_ids = native_ids
        self._statements: dict[Any, Statement] = {}

    def find(self, condition: f.Condition, limit: int | None) -> Query:
        """Ids of matching sessions, most recently active first."""
        return self._query(("find", limit), condition, lambda build: build.find(limit))

    def count(self, condition: f.Condition) -> Query:
        """The number of matching sessions."""
        return self._query(("count",), condition, lambda build: build.count())

    def ids(self, condition: f.Condition, *, after: str | None, limit: int) -> Query:
        """A page of ids of matching sessions, in the order of the walk."""
        return self._query(
            ("ids", after is None, limit),
            condition,
            lambda build: build.ids(walk=after is not None, limit=limit),
            {} if after is None else {"after_id": after},
        )

    def page(
        self,
        condition: f.Condition,
        ordering: Ordering,
        *,
        limit: int,
        after: Position | None = None,
        keys: Sequence[str] | None = None,
        count_items: bool = False,
    ) -> Query:
        """A page of sessions with their metadata: a row a session and key, in one statement."""
        parameters: dict[str, Any] = {}
        if after is not None:
            parameters.update(self.dialect.position_parameters(*after))
        if keys:
            parameters.update(self.dialect.list_parameters("keys", keys))
        some_keys = keys if keys is None else min(len(keys), self.dialect.many + 1)
        return self._query(
            ("page", ordering, limit, after is None, some_keys, count_items),
            condition,
            lambda build: build.page(
                ordering,
                limit=limit,
                beyond=after is not None,
                some_keys=some_keys,
                count_items=count_items,
            ),
            parameters,
        )

    def last(
        self, condition: f.Condition, *, with_metadata: bool = True, count_items: bool = False
    ) -> Query:
        """The session that was active last: by time, and within one tick by its newest message."""
        return self._query(
            ("last", with_metadata, count_items),
            condition,
            lambda build: build.last(with_metadata=with_metadata, count_items=count_items),
        )

    def count_values(self, key: str, condition: f.Condition, limit: int) -> Query:
        """How many sessions carry each scalar under a key, list elements one by one."""
        return self._query(
            ("count_values", limit),
            condition,
            lambda build: build.count_values(limit),
            {"counted_key": key},
        )

    def statistics(self, condition: f.Condition, build: Callable[[Builder], Statement]) -> Query:
        """A statement of totals over matching sessions, as `build` makes it."""
        return self._query(("statistics",), condition, build)

    def where(
        self, statement: Statement, condition: f.Condition, session_id: ColumnElement[str]
    ) -> Query:
        """A statement, for the session with this id only if a condition on metadata holds."""
        builder = self._builder(condition)
        return Query(
            statement.where(builder.truth(condition, session_id)),
            parameters_of(condition, self.dialect),
        )

    def _builder(self, condition: f.Condition) -> Builder:
        return Builder(self.dialect, self.tables, condition, native_ids=self.native_ids)

    def _query(
        self,
        kind: tuple[Any, ...],
        condition: f.Condition,
        build: Callable[[Builder], Statement],
        parameters: dict[str, Any] | None = None,
    ) -> Query:
        shape = kind, shape_of(condition)
        statement = self._statements.get(shape)
        if statement is None:
            if len(self._statements) >= self._REMEMBERED:
                self._statements.clear()
            statement = self._statements[shape] = build(self._builder(condition))
        return Query(statement, {**parameters_of(condition, self.dialect), **(parameters or {})})
