"""A scope: the metadata values that every session seen through it has, or a filter.

`ScopedStore` adds a condition to each query, and a check after each lock. The storage below knows
nothing of scopes. With a filter, the database of the store refuses to write.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool

from .core.database import Database
from .core.definitions import TableNames
from .core.messages import newest_id
from .core.store import SessionStore
from .errors import ScopeError
from .keys import OWNER_ID
from .query.conditions import equality
from .query.filters import Where, parse_filter, parse_values
from .query.logic import All, Condition, OfExisting
from .query.pages import Queries, check_limit, queries_of, read_sessions
from .text import quoted
from .types import JSONValue, MetadataLimits
from .values import EncodedValue, canonical_text, encode_metadata, json_text, plain, search_key

MISSING: Any = object()
"""Stands for an argument that was not given."""


class Scope:
    """Fixed values under some keys, and filters. An empty scope contains every session."""

    def __init__(
        self, values: Mapping[str, JSONValue] | None = None, filters: tuple[Where, ...] = ()
    ) -> None:
        self.values: dict[str, JSONValue] = {
            key: plain(value) for key, value in (values or {}).items()
        }
        self.filters: tuple[dict[str, Any], ...] = tuple(map(_as_json, filters))
        conditions: list[Condition] = [equality(self.values)] if self.values else []
        conditions += [parse_filter(each) for each in self.filters]
        self.condition: Condition = conditions[0] if len(conditions) == 1 else All((*conditions,))

    def __bool__(self) -> bool:
        return bool(self.values or self.filters)

    @property
    def where(self) -> dict[str, Any]:
        """The scope as a filter."""
        parts = [each for each in (self.values, *self.filters) if each]
        return {"$and": parts} if len(parts) > 1 else parts[0] if parts else {}

    def restrict(self, condition: Condition) -> Condition:
        return All((self.condition, condition)) if self else condition


class ScopedStore(SessionStore):
    """Sessions by id and by filter, within a scope. An empty scope restricts nothing."""

    def __init__(
        self, database: Database, limits: MetadataLimits | None, scope: Scope | None = None
    ) -> None:
        super().__init__(database, MetadataLimits() if limits is None else limits)
        self.scope: Scope = scope or Scope()
        self._searched = {key: search_key(value) for key, value in self.scope.values.items()}

    @property
    def fixed(self) -> Mapping[str, EncodedValue]:  # type: ignore[override]  # not written to
        return encode_metadata(self.scope.values, self.limits) if self.scope else {}

    def within(self, values: Mapping[str, JSONValue]) -> ScopedStore:
        """Narrows the scope. Raises `ScopeError` if it has another value for a key."""
        checked = parse_values(values, "a scope")
        for key, value in checked.items():
            if value is None:
                raise ValueError(f"scope key {quoted(key)} is None; a scope needs a value")
            if key in self._searched and self._searched[key] != search_key(value):
                raise ScopeError(key)
        scope = Scope({**checked, **self.scope.values}, self.scope.filters)
        return ScopedStore(self.database, self.limits, scope)

    def readable(self, where: Where) -> ScopedStore:
        """Adds a filter. Raises `ValueError` if every session is still within the scope."""
        scope = Scope(self.scope.values, (*self.scope.filters, where))
        if scope.condition.constant:
            raise ValueError(
                "readable needs a filter with a condition; it does not show every session"
            )
        return ScopedStore(self.database.refusing(_read_only), self.limits, scope)

    @property
    def owner(self) -> str | None:
        """The canonical text of an `owner_id` that alone is the scope, or None."""
        values = self.scope.values
        is_owner = values.keys() == {OWNER_ID} and not self.scope.filters
        return canonical_text(json_text(OWNER_ID, values[OWNER_ID])) if is_owner else None

    @property
    def is_restricted(self) -> bool:
        """If true, `admits` must be called after each lock."""
        return bool(self.scope)

    @property
    def queries(self) -> Queries:
        return queries_of(self.database)

    def condition(self, where: Where | None) -> Condition:
        return self.scope.restrict(parse_filter(where))

    def admits(self, connection: Connection, session_id: str) -> bool:
        """Must be called while the session is locked."""
        if not self.scope:
            return True
        return self.rows.search_keys(connection, session_id, self._searched) == self._searched

    def admits_new(self, connection: Connection, session_id: str) -> bool:
        """Rejects a session that was just created and has a history.

        A history whose session row is missing can belong to another user: in a scope, the id is
        taken.
        """
        return not (self.scope and newest_id(self.database, connection, session_id))

    def check_written(self, encoded: Mapping[str, EncodedValue], removed: Collection[str]) -> None:
        for key, search in self._searched.items():
            if key in removed or (key in encoded and encoded[key].search != search):
                self.database.check_writable()
                raise ScopeError(key)

    def encode_new(self, metadata: Mapping[str, JSONValue]) -> dict[str, EncodedValue]:
        """Adds the values of the scope, or raises `ScopeError` if the metadata contradicts them."""
        encoded = super().encode_new(metadata)
        if self.scope:
            self.check_written(encoded, ())
            encoded = encode_metadata({**metadata, **self.scope.values}, self.limits)
        return encoded

    def question(self, statement: Any, session_id: Any) -> tuple[Any, dict[str, Any]]:
        if not self.scope:
            return statement, {}
        condition = self.scope.condition
        if self.scope.filters and session_id is not self.database.tables.sessions.c.session_id:
            # Unlike a value, a filter can hold for a row whose session is gone.
            condition = OfExisting((condition,))
        return self.queries.where(statement, condition, session_id)

    async def find_sessions(
        self, key_or_filter: str | Where, value: JSONValue = MISSING, limit: int | None = None
    ) -> list[str]:
        where: Any = key_or_filter
        if isinstance(key_or_filter, str):
            if value is MISSING:
                raise TypeError("a key needs a value; for a filter, pass a mapping")
            where = {key_or_filter: {"$eq": value}}
        elif value is not MISSING:
            raise TypeError("a filter takes no separate value")
        if limit is not None:
            check_limit(limit)
        condition = self.condition(where)
        return await read_sessions(self.database, lambda reader: reader.ids(condition, limit))


def _read_only() -> ScopeError:
    return ScopeError(None, "the catalog is read-only: it was made by `readable`")


def _as_json(where: Where) -> dict[str, Any]:
    """Returns a copy of a filter, with times as text."""
    parse_filter(where)
    copy: dict[str, Any] = json.loads(json.dumps(where or {}, default=_json_part))
    return copy


def _json_part(part: Any) -> Any:
    return dict(part) if isinstance(part, Mapping) else part.isoformat()


def own_store(
    engine: AsyncEngine,
    names: TableNames,
    *,
    create_tables: bool,
    limits: MetadataLimits | None = None,
) -> ScopedStore:
    """Opens the store of an engine that no session of the SDK uses, without importing the SDK."""
    turn, lock = asyncio.Lock(), threading.Lock()
    database = Database(
        engine,
        names,
        create_tables=create_tables,
        guard=(lambda: turn) if isinstance(engine.pool, StaticPool) else None,
        init_lock=lambda: lock,
    )
    return ScopedStore(database, limits)
