"""Conditions on one value, id or time, with a class per kind of test.

An operator of the filter language is a function in `filters`, which returns one of these.
"""

from __future__ import annotations

import operator as op
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    Integer,
    String,
    Table,
    and_,
    bindparam,
    false,
    func,
    literal,
    or_,
    select,
    true,
)

from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.dialects.sqltypes import PlainBytes
from agents_session_metadata.keys import ARCHIVED, PHASE, PINNED, READY, STATUS
from agents_session_metadata.values import (
    FALSE,
    NULL,
    STRING,
    TRUE,
    SearchKey,
    search_key,
    upper_bound,
)

from .logic import NO_DRIVER, All, Condition, Context, Driver

_COARSE_KEYS = {STATUS, PHASE, READY, PINNED, ARCHIVED}
_COARSE_VALUES = {NULL, FALSE, TRUE}
"""Each is shared by many sessions: a poor way into an index."""

TimeColumn: TypeAlias = Literal["created_at", "updated_at"]
TimeOperator: TypeAlias = Literal["$gt", "$gte", "$lt", "$lte"]


# ---- metadata ----


@dataclass(frozen=True)
class MetadataCondition(Condition):
    key: str

    def table(self, tables: SessionTables) -> Table:
        return tables.metadata

    @abstractmethod
    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
        """Returns the condition on a row of this key."""

    def operands(self, name: str, dialect: Dialect) -> dict[str, Any]:
        return {}

    @property
    def reads_one_key(self) -> bool:
        """True if the condition compares one whole indexed search key, and nothing else."""
        return False

    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        return {f"{name}_key": self.key, **self.operands(name, dialect)}

    def driver(self, name: str, context: Context) -> Driver:
        rows = self.table(context.tables).alias("driver")
        return Driver(rows, (_of_key(name, rows), self.matches(name, context.dialect, rows)))

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        table = self.table(context.tables)
        rows = table.alias()
        of_key, matches = _of_key(name, rows), self.matches(name, context.dialect, rows)
        by_range = context.dialect.probes_by_range and self.reads_one_key
        if by_range or table is context.tables.elements:
            own = rows.c.session_id == session_id
            if by_range:
                own = rows.c.session_id.between(session_id, session_id)
            # A subquery with a limit stays one; EXISTS would become a join.
            found = select(true()).where(own, of_key, matches).limit(constant(1))
        else:
            found = select(matches).where(rows.c.session_id == session_id, of_key)
        looked_up = found.correlate(getattr(session_id, "table", None)).scalar_subquery()
        truth: ColumnElement[bool] = func.coalesce(looked_up, false())
        return truth


@dataclass(frozen=True)
class Equals(MetadataCondition):
    """The value under a key equals one of these."""

    values: tuple[SearchKey, ...]

    @property
    def rank(self) -> int:
        if len(self.values) != 1:
            return 4
        coarse = self.key in _COARSE_KEYS or self.values[0].indexed in _COARSE_VALUES
        return 8 if coarse else 1

    @property
    def reads_one_key(self) -> bool:
        return len(self.values) == 1 and self.values[0].is_whole

    def variant(self) -> Hashable:
        whole, long = self._split()
        return count_shape(len(whole)), len(long)

    def operands(self, name: str, dialect: Dialect) -> dict[str, Any]:
        whole, long = self._split()
        parameters: dict[str, Any] = {}
        if len(whole) == 1:
            parameters[name] = whole[0]
        elif whole:
            parameters.update(dialect.list_parameters(name, whole))
        for index, value in enumerate(long):
            parameters[f"{name}_long{index}"] = value.indexed
            parameters[f"{name}_rest{index}"] = value.rest
        return parameters

    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
        search, rest = rows.c.search_key, rows.c.search_rest
        whole, long = self._split()
        options: list[ColumnElement[bool]] = [
            and_(
                search == bytes_of_call(f"{name}_long{index}"),
                rest == bytes_of_call(f"{name}_rest{index}"),
            )
            for index in range(len(long))
        ]
        if len(whole) == 1:
            options.insert(0, search == bytes_of_call(name))
        elif whole:
            options.insert(0, dialect.one_of(search, name, len(whole)))
        return or_(*options)

    def encoded(self) -> list[Any]:
        return ["equals", self.key, sorted(map(_hex, self.values))]

    def _split(self) -> tuple[list[bytes], list[SearchKey]]:
        whole = [value.indexed for value in self.values if value.is_whole]
        return whole, [value for value in self.values if not value.is_whole]


class Contains(Equals):
    """The value under a key is a list with one of these scalars as an element."""

    @property
    def rank(self) -> int:
        return 3

    def table(self, tables: SessionTables) -> Table:
        return tables.elements

    def encoded(self) -> list[Any]:
        return ["contains", self.key, sorted(map(_hex, self.values))]


class ContainsAll(Contains):
    """The value under a key is a list with all of these scalars. Their search keys are whole."""

    @property
    def rank(self) -> int:
        return NO_DRIVER

    def operands(self, name: str, dialect: Dialect) -> dict[str, Any]:
        return {**super().operands(name, dialect), f"{name}_count": len(self.values)}

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        rows = context.tables.elements.alias()
        matches = self.matches(name, context.dialect, rows)
        found = select(func.count(rows.c.search_key.distinct())).where(
            rows.c.session_id == session_id, _of_key(name, rows), matches
        )
        counted = found.correlate(getattr(session_id, "table", None)).scalar_subquery()
        has_all: ColumnElement[bool] = counted == bindparam(f"{name}_count", type_=Integer)
        return has_all

    def encoded(self) -> list[Any]:
        return ["contains_all", self.key, sorted(map(_hex, self.values))]


class Bound(NamedTuple):
    value: SearchKey
    inclusive: bool


@dataclass(frozen=True)
class Between(MetadataCondition):
    """The value under a key has a type, given by its tag, and is within bounds."""

    tag: bytes
    low: Bound | None
    high: Bound | None

    @property
    def rank(self) -> int:
        return 6 if self.low and self.high else 9

    def variant(self) -> Hashable:
        ends = (self.low, self.high)
        return self.tag, *(end and (end.inclusive, end.value.is_whole) for end in ends)

    def operands(self, name: str, dialect: Dialect) -> dict[str, Any]:
        parameters = {}
        for side, end in (("low", self.low), ("high", self.high)):
            if end is not None:
                parameters[f"{name}_{side}"] = end.value.indexed
                if not end.value.is_whole:
                    parameters[f"{name}_{side}_rest"] = end.value.rest
        return parameters

    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
        search, rest = rows.c.search_key, rows.c.search_rest
        return and_(
            *_bounds(self.low, f"{name}_low", self.tag, search, rest, op.gt, op.ge),
            *_bounds(self.high, f"{name}_high", upper_bound(self.tag), search, rest, op.lt, op.le),
        )

    def encoded(self) -> list[Any]:
        ends = [end and [_hex(end.value), end.inclusive] for end in (self.low, self.high)]
        return ["between", self.key, self.tag.hex(), *ends]


@dataclass(frozen=True)
class HasPrefix(MetadataCondition):
    prefix: SearchKey

    @property
    def rank(self) -> int:
        # The empty prefix is every string.
        return 5 if self.prefix.indexed != STRING else 9

    def variant(self) -> Hashable:
        return bool(self.prefix.rest)

    def operands(self, name: str, dialect: Dialect) -> dict[str, Any]:
        indexed, rest = self.prefix
        parameters = {name: indexed, f"{name}_above": upper_bound(rest or indexed)}
        return {**parameters, f"{name}_rest": rest} if rest else parameters

    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
        search, rest = rows.c.search_key, rows.c.search_rest
        begins, above = bytes_of_call(name), bytes_of_call(f"{name}_above")
        if self.prefix.rest:
            return and_(search == begins, rest >= bytes_of_call(f"{name}_rest"), rest < above)
        return and_(search >= begins, search < above)

    def encoded(self) -> list[Any]:
        return ["prefix", self.key, _hex(self.prefix)]


@dataclass(frozen=True)
class Exists(MetadataCondition):
    @property
    def rank(self) -> int:
        return 10

    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
        return true()

    def encoded(self) -> list[Any]:
        return ["exists", self.key]


# ---- the session's own columns ----


class _IdCondition(Condition):
    def driver(self, name: str, context: Context) -> Driver:
        sessions = context.tables.sessions
        return Driver(sessions, (self.truth(name, context, sessions.c.session_id),))


@dataclass(frozen=True)
class IdIn(_IdCondition):
    ids: tuple[str, ...]

    @property
    def rank(self) -> int:
        return 0

    def variant(self) -> Hashable:
        return count_shape(len(self.ids))

    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        return dialect.list_parameters(name, self.ids)

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        return context.dialect.one_of(session_id, name, len(self.ids))

    def encoded(self) -> list[Any]:
        return ["id_in", sorted(self.ids)]


@dataclass(frozen=True)
class IdHasPrefix(_IdCondition):
    prefix: str

    @property
    def rank(self) -> int:
        return 2

    def variant(self) -> Hashable:
        return string_above(self.prefix) is None

    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        above = string_above(self.prefix)
        return {name: self.prefix, **({} if above is None else {f"{name}_above": above})}

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        by_code_point = context.sorted_id(session_id)
        bounds = [by_code_point >= bindparam(name, type_=String)]
        if string_above(self.prefix) is not None:
            bounds.append(by_code_point < bindparam(f"{name}_above", type_=String))
        return and_(*bounds)

    def encoded(self) -> list[Any]:
        return ["id_prefix", self.prefix]


_TIME_OPERATORS: dict[TimeOperator, Any] = {
    "$gt": op.gt,
    "$gte": op.ge,
    "$lt": op.lt,
    "$lte": op.le,
}


@dataclass(frozen=True)
class TimeBound(Condition):
    column: TimeColumn
    operator: TimeOperator
    moment: datetime

    @property
    def uses_times(self) -> bool:
        return True

    def variant(self) -> Hashable:
        return self.column, self.operator

    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        return {name: self.moment}

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        kind = context.dialect.moment
        column = kind.comparable(context.tables.sessions.c[self.column])
        moment = bindparam(name, type_=kind)
        truth: ColumnElement[bool] = _TIME_OPERATORS[self.operator](column, moment)
        return truth

    def encoded(self) -> list[Any]:
        moment = self.moment.astimezone(timezone.utc).isoformat(timespec="microseconds")
        return ["time", self.column, self.operator, moment]


def equality(values: Mapping[str, Any]) -> All:
    return All(tuple(Equals(key, (search_key(value),)) for key, value in values.items()))


def count_shape(count: int) -> int:
    """Returns 0, 1, 2 for some or 3 for many: counts that need different statements."""
    return count if count < 2 else 2 + (count > Dialect.many)


def string_above(prefix: str) -> str | None:
    """Returns the smallest string above all that begin with `prefix`, or None."""
    while prefix:
        last = ord(prefix[-1]) + 1
        if last == 0xD800:
            last = 0xE000  # Surrogates are not characters.
        if last <= 0x10FFFF:
            return prefix[:-1] + chr(last)
        prefix = prefix[:-1]
    return None


def constant(number: int) -> ColumnElement[int]:
    """Puts a number in the text of the statement, because a planner needs to know a limit."""
    return bindparam(None, number, Integer, literal_execute=True)


UNLIMITED: ColumnElement[int] = constant(2**31 - 1)
"""A limit above every number of rows: with it, no database merges a subquery into its statement."""


def _hex(value: SearchKey) -> str:
    return (value.indexed + value.rest).hex()


def bytes_of_call(name: str) -> BindParameter[bytes]:
    return bindparam(name, type_=PlainBytes)


def _of_key(name: str, rows: FromClause) -> ColumnElement[bool]:
    is_of_key: ColumnElement[bool] = rows.c.key == bindparam(f"{name}_key", type_=String)
    return is_of_key


def _bounds(
    end: Bound | None, name: str, limit: bytes, search: Any, rest: Any, beyond: Any, within: Any
) -> list[ColumnElement[bool]]:
    """Compares search keys with one end of a range; without one, with the limit of their type.

    `beyond` excludes the end, `within` includes it.
    """
    if end is None:
        # The tag of a type is its first search key; the bound above it belongs to the next type.
        return [(within if beyond is op.gt else beyond)(search, literal(limit, PlainBytes))]
    compare = within if end.inclusive else beyond
    if end.value.is_whole:
        return [compare(search, bytes_of_call(name))]
    further = compare(rest, bytes_of_call(f"{name}_rest"))
    return [within(search, bytes_of_call(name)), or_(beyond(search, bytes_of_call(name)), further)]
