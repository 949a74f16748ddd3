"""Conditions on one value, id or time, with a class per kind of test.

An operator of the filter language is a function in `filters`, which returns one of these.
"""

from __future__ import annotations

import operator as op
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
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
    or_,
    select,
    true,
)

from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, literal_number
from agents_session_metadata.dialects.sqltypes import PlainBytes
from agents_session_metadata.keys import ARCHIVED, PHASE, PINNED, READY, STATUS
from agents_session_metadata.types import MAX_ID_LENGTH
from agents_session_metadata.values import (
    FALSE,
    NULL,
    STRING,
    TRUE,
    SearchKey,
    search_key,
    upper_bound,
)

from .logic import NO_DRIVER, All, Condition, Context, Driver, Id, Parameters, Truth

_COARSE_KEYS = {STATUS, PHASE, READY, PINNED, ARCHIVED}
_COARSE_VALUES = {NULL, FALSE, TRUE}
"""Each is shared by many sessions: a poor way into an index."""

TimeColumn: TypeAlias = Literal["created_at", "updated_at"]
_Compare: TypeAlias = Callable[[Any, Any], Truth]
COMPARE: dict[str, _Compare] = {"$gt": op.gt, "$gte": op.ge, "$lt": op.lt, "$lte": op.le}


# ---- metadata ----


@dataclass(frozen=True)
class MetadataCondition(Condition):
    key: str

    def table(self, tables: SessionTables) -> Table:
        return tables.metadata

    @abstractmethod
    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> Truth:
        """Returns the condition on a row of this key."""

    def operands(self, name: str, dialect: Dialect) -> Parameters:
        return {}

    @property
    def reads_one_key(self) -> bool:
        """True if the condition compares one whole indexed search key, and nothing else."""
        return False

    def parameters(self, name: str, dialect: Dialect) -> Parameters:
        return {f"{name}_key": self.key, **self.operands(name, dialect)}

    def tests(self, name: str, context: Context, rows: FromClause) -> tuple[Truth, Truth]:
        is_key: Truth = rows.c.key == bindparam(f"{name}_key", type_=String)
        return is_key, self.matches(name, context.dialect, rows)

    def driver(self, name: str, context: Context) -> Driver:
        rows = self.table(context.tables).alias("driver")
        return Driver(rows, self.tests(name, context, rows))

    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        table = self.table(context.tables)
        rows = table.alias()
        is_key, matches = self.tests(name, context, rows)
        if self.reads_one_key:
            # In the covering index, the sessions of one value are close to each other. A subquery
            # with a limit stays one; EXISTS would become a join.
            found = select(true()).where(is_key, matches).limit(literal_number(1))
            found = context.dialect.probing(found, rows, session_id)
        else:
            own = rows.c.session_id == session_id
            key = bindparam(f"{name}_key", type_=String)
            is_key = context.dialect.by_primary_key(rows.c.key, key)
            if table is context.tables.elements:
                found = select(true()).where(own, is_key, matches).limit(literal_number(1))
            else:
                found = select(matches).where(own, is_key)
        truth: Truth = func.coalesce(_looked_up(found, session_id), false())
        return truth


def _looked_up(found: Any, session_id: Id) -> Any:
    return found.correlate(getattr(session_id, "table", None)).scalar_subquery()


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

    def operands(self, name: str, dialect: Dialect) -> Parameters:
        whole, long = self._split()
        parameters: Parameters = {name: whole[0]} if len(whole) == 1 else {}
        if len(whole) > 1:
            parameters.update(dialect.list_parameters(name, whole))
        for index, value in enumerate(long):
            parameters[f"{name}_long{index}"] = value.indexed
            parameters[f"{name}_rest{index}"] = value.rest
        return parameters

    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> Truth:
        search, rest = rows.c.search_key, rows.c.search_rest
        whole, long = self._split()
        options: list[Truth] = []
        if len(whole) == 1:
            options.append(search == bytes_parameter(name))
        elif whole:
            options.append(dialect.one_of(search, name, len(whole)))
        for index in range(len(long)):
            begins = search == bytes_parameter(f"{name}_long{index}")
            options.append(and_(begins, rest == bytes_parameter(f"{name}_rest{index}")))
        return or_(*options)

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


class ContainsAll(Contains):
    """The value under a key is a list with all of these scalars. Their search keys are whole."""

    @property
    def rank(self) -> int:
        return NO_DRIVER

    def operands(self, name: str, dialect: Dialect) -> Parameters:
        return {**super().operands(name, dialect), f"{name}_count": len(self.values)}

    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        rows = context.tables.elements.alias()
        found = select(func.count(rows.c.search_key.distinct())).where(
            rows.c.session_id == session_id, *self.tests(name, context, rows)
        )
        count = bindparam(f"{name}_count", type_=Integer)
        has_all: Truth = _looked_up(found, session_id) == count
        return has_all


class Bound(NamedTuple):
    value: SearchKey
    inclusive: bool


@dataclass(frozen=True)
class Between(MetadataCondition):
    """The value under a key has a type, given by its tag, and is within its bounds, if any."""

    tag: bytes
    low: Bound | None
    high: Bound | None

    @property
    def rank(self) -> int:
        return 6 if self.low and self.high else 9

    @property
    def _ends(self) -> tuple[tuple[str, Bound, _Compare, _Compare], ...]:
        """Both ends: a name, the bound, what excludes it, and what includes it."""
        # The tag of a type is its first search key; the bound above it belongs to the next type.
        low = self.low or Bound(SearchKey(self.tag, b""), inclusive=True)
        high = self.high or Bound(SearchKey(upper_bound(self.tag), b""), inclusive=False)
        return ("low", low, op.gt, op.ge), ("high", high, op.lt, op.le)

    def variant(self) -> Hashable:
        return tuple((end.inclusive, end.value.is_whole) for _, end, *_ in self._ends)

    def operands(self, name: str, dialect: Dialect) -> Parameters:
        parameters = {}
        for side, (value, _), *_ in self._ends:
            parameters[f"{name}_{side}"] = value.indexed
            if not value.is_whole:
                parameters[f"{name}_{side}_rest"] = value.rest
        return parameters

    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> Truth:
        search, rest = rows.c.search_key, rows.c.search_rest
        truths: list[Truth] = []
        for side, (value, inclusive), beyond, within in self._ends:
            end, compare = bytes_parameter(f"{name}_{side}"), within if inclusive else beyond
            if value.is_whole:
                truths.append(compare(search, end))
            else:
                further = compare(rest, bytes_parameter(f"{name}_{side}_rest"))
                truths += [within(search, end), or_(beyond(search, end), further)]
        return and_(*truths)


class HasPrefix(Between):
    """The value under a key is a string that begins with the lower bound."""

    @property
    def rank(self) -> int:
        # The empty prefix is every string.
        return 5 if self.low and self.low.value.indexed != STRING else 9


@dataclass(frozen=True)
class Exists(MetadataCondition):
    @property
    def rank(self) -> int:
        return 10

    def matches(self, name: str, dialect: Dialect, rows: FromClause) -> Truth:
        return true()


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

    def parameters(self, name: str, dialect: Dialect) -> Parameters:
        return dialect.list_parameters(name, self.ids)

    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        return context.dialect.one_of(session_id, name, len(self.ids))


@dataclass(frozen=True)
class IdHasPrefix(_IdCondition):
    prefix: str

    @property
    def rank(self) -> int:
        return 2

    def parameters(self, name: str, dialect: Dialect) -> Parameters:
        # No id that begins so is above it.
        return {name: self.prefix, f"{name}_last": self.prefix.ljust(MAX_ID_LENGTH, "\U0010ffff")}

    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        by_code_point = context.sorted_id(session_id)
        first, last = bindparam(name, type_=String), bindparam(f"{name}_last", type_=String)
        return and_(by_code_point >= first, by_code_point <= last)


@dataclass(frozen=True)
class TimeBound(Condition):
    column: TimeColumn
    operator: str
    moment: datetime

    @property
    def uses_times(self) -> bool:
        return True

    def variant(self) -> Hashable:
        return self.column, self.operator

    def parameters(self, name: str, dialect: Dialect) -> Parameters:
        return {name: self.moment}

    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        kind = context.dialect.moment
        column = kind.of(context.tables.sessions.c[self.column])
        return COMPARE[self.operator](column, bindparam(name, type_=kind))


def check_age(name: str, age: object) -> None:
    if not isinstance(age, timedelta):
        raise TypeError(f"{name} must be a timedelta, got {type(age).__name__}")
    if age < timedelta(0):
        raise ValueError(f"{name} must not be negative, got {age}")


def moment_before(age: timedelta) -> datetime | None:
    """Returns None if the age goes back further than the first datetime."""
    try:
        return datetime.now(timezone.utc) - age
    except OverflowError:
        return None


def equality(values: Mapping[str, Any]) -> All:
    return All(tuple(Equals(key, (search_key(value),)) for key, value in values.items()))


def count_shape(count: int) -> int:
    """Returns 0, 1, 2 for some or 3 for many: counts that need different statements."""
    return count if count < 2 else 2 + (count > Dialect.many)


UNLIMITED: ColumnElement[int] = literal_number(2**31 - 1)
"""A limit above every number of rows: with it, no database merges a subquery into its statement."""


def bytes_parameter(name: str) -> BindParameter[bytes]:
    return bindparam(name, type_=PlainBytes)
