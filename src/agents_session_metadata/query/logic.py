"""What a condition on sessions is, and how conditions combine.

A statement is built once per shape and run with the parameters of each call. Everything that
changes the text of a statement is part of the shape; keys and values never are. Conditions are
plain values without names: the name that prefixes the parameters of a condition is its place in
the whole, and is passed down.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, and_, false, not_, or_, select, true, union

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.storage.tables import SessionTables

IN_ORDER = 3
"""Up to this rank, a condition yields its sessions in the order of their ids."""
SELECTIVE = 7
"""Up to this rank, a condition is assumed to hold for few sessions."""
NO_DRIVER = 11
"""The rank of a condition that cannot drive."""


class Context(NamedTuple):
    """What SQL is built for.

    Attributes:
        dialect: The database.
        tables: The tables.
        native_ids: Whether ids compare by code point in the sessions table as it is.
    """

    dialect: Dialect
    tables: SessionTables
    native_ids: bool

    def sorted_id(
        self, session_id: ColumnElement[str], *, native: bool = False
    ) -> ColumnElement[str]:
        """A session id as it sorts by code point."""
        return self.dialect.by_code_point(session_id, native=native or self.native_ids)


class Driver(NamedTuple):
    """The rows of an index from which the ids of matching sessions are read.

    Attributes:
        rows: The rows.
        conditions: What must hold for them.
        exact: Whether the condition holds for all of these sessions. If not, it is checked again.
    """

    rows: FromClause
    conditions: tuple[ColumnElement[bool], ...]
    exact: bool = True


class Condition(ABC):
    """A condition on a session."""

    @property
    def rank(self) -> int:
        """How well the condition can drive a statement, by its kind; the lowest is the best."""
        return NO_DRIVER

    @property
    def uses_times(self) -> bool:
        """Whether the condition reads columns of the sessions table other than the id."""
        return False

    @property
    def constant(self) -> bool | None:
        """Whether the condition holds, if that is the same for every session. None if not."""
        return None

    def conjunction(self, name: str) -> Iterator[tuple[str, Condition]]:
        """The conditions that must all hold, each with its name."""
        yield name, self

    def shape(self) -> Hashable:
        """A value that two conditions share if one statement serves both."""
        return type(self), self.rank, self.variant()

    def variant(self) -> Hashable:
        """What changes the SQL besides class and rank."""
        return None

    @abstractmethod
    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        """The parameters that a statement of this shape takes."""

    @abstractmethod
    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        """SQL that is true or false, never unknown, for the session with this id."""

    def driver(self, name: str, context: Context) -> Driver:
        """The rows to read, if the rank is below `NO_DRIVER`."""
        raise NotImplementedError

    @abstractmethod
    def encoded(self) -> list[Any]:
        """The condition as JSON, for formats that outlive a process.

        Version 1. Two conditions that differ only in the order of their parts or values have the
        same encoding. A change invalidates the cursors that users hold: see `cursors.VERSION`.
        """


class _Combination(Condition):
    """A condition made of others."""

    @abstractmethod
    def inner(self) -> tuple[Condition, ...]:
        """The others."""

    def named(self, name: str) -> Iterator[tuple[str, Condition]]:
        """The others, with their names."""
        return ((f"{name}_{place}", part) for place, part in enumerate(self.inner()))

    @property
    def uses_times(self) -> bool:
        return any(part.uses_times for part in self.inner())

    def variant(self) -> Hashable:
        return tuple(part.shape() for part in self.inner())

    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        parameters: dict[str, Any] = {}
        for inner, part in self.named(name):
            parameters.update(part.parameters(inner, dialect))
        return parameters

    def truths(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> Iterator[ColumnElement[bool]]:
        """The SQL of the others."""
        return (part.truth(inner, context, session_id) for inner, part in self.named(name))

    def unordered(self) -> list[Any]:
        """The encodings of the others, in an order of their own."""
        return sorted((part.encoded() for part in self.inner()), key=json.dumps)


@dataclass(frozen=True)
class All(_Combination):
    """Every part holds. Without parts, it holds for every session."""

    parts: tuple[Condition, ...]

    def inner(self) -> tuple[Condition, ...]:
        return self.parts

    @property
    def constant(self) -> bool | None:
        found = {part.constant for part in self.parts}
        return False if False in found else None if None in found else True

    def conjunction(self, name: str) -> Iterator[tuple[str, Condition]]:
        for inner, part in self.named(name):
            yield from part.conjunction(inner)

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        return and_(true(), *self.truths(name, context, session_id))

    def encoded(self) -> list[Any]:
        return ["all", self.unordered()]


@dataclass(frozen=True)
class AnyOf(_Combination):
    """Some part holds. Without parts, it holds for no session."""

    parts: tuple[Condition, ...]

    def inner(self) -> tuple[Condition, ...]:
        return self.parts

    @property
    def rank(self) -> int:
        best = (best_of(part.conjunction(""))[1].rank for part in self.parts)
        return max(7, *best) if self.parts else NO_DRIVER

    @property
    def constant(self) -> bool | None:
        found = {part.constant for part in self.parts}
        return True if True in found else None if None in found else False

    def driver(self, name: str, context: Context) -> Driver:
        """The ids of sessions for which the best condition of some part holds."""
        selects = []
        for inner, part in self.named(name):
            best_name, best = best_of(part.conjunction(inner))
            rows, conditions, _ = best.driver(best_name, context)
            selects.append(select(rows.c.session_id).where(*conditions))
        return Driver(union(*selects).subquery("candidates"), (), exact=False)

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        return or_(false(), *self.truths(name, context, session_id))

    def encoded(self) -> list[Any]:
        return ["any", self.unordered()]


@dataclass(frozen=True)
class Not(_Combination):
    """The part does not hold."""

    part: Condition

    def inner(self) -> tuple[Condition, ...]:
        return (self.part,)

    @property
    def constant(self) -> bool | None:
        inner = self.part.constant
        return None if inner is None else not inner

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        return not_(*self.truths(name, context, session_id))

    def encoded(self) -> list[Any]:
        return ["not", self.part.encoded()]


EVERYTHING = All(())
NOTHING = AnyOf(())


def best_of(parts: Iterable[tuple[str, Condition]]) -> tuple[str, Condition]:
    """The condition that drives best, with its name; one that cannot drive if there is none."""
    return min(parts, key=lambda named: named[1].rank, default=("", NOTHING))
