"""Conditions on sessions, and their combinations.

A statement is built once per shape and run with the parameters of each call. Everything that
changes the text of a statement is part of the shape; keys and values never are. Conditions are
plain values without names: the name that prefixes the parameters of a condition is its place in the
whole, and is passed down.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, FromClause, and_, false, not_, or_, select, true, union

from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect

Id: TypeAlias = ColumnElement[str]
Truth: TypeAlias = ColumnElement[bool]
"""SQL that is true or false, never unknown."""
Parameters: TypeAlias = dict[str, Any]

# Ranks, from the condition with the fewest sessions to the one with the most: 0 ids, 1 a value,
# 2 a prefix of ids, 3 an element, 4 some values, 5 a prefix, 6 a range, 8 a value that is usually
# common (such as a boolean), 9 an open range, 10 a key that exists, 11 no rows to read from.
IN_ORDER = 3
"""Up to this rank, a condition yields its sessions in the order of their ids."""
SELECTIVE = 7
"""Up to this rank, a condition is assumed to hold for few sessions."""
NO_DRIVER = 11
"""The rank of a condition that cannot drive."""


class Context(NamedTuple):
    """With `native_ids`, ids in the sessions table compare by code point without conversion."""

    dialect: Dialect
    tables: SessionTables
    native_ids: bool

    def sorted_id(self, session_id: Id, *, native: bool = False) -> Id:
        return self.dialect.by_code_point(session_id, native=native or self.native_ids)


class Driver(NamedTuple):
    """The rows of an index from which the ids of matching sessions are read.

    If not `exact`, the condition does not hold for all of them and is checked again.
    """

    rows: FromClause
    conditions: tuple[Truth, ...]
    exact: bool = True


class Condition(ABC):
    @property
    def rank(self) -> int:
        """A lower rank drives a statement better."""
        return NO_DRIVER

    @property
    def uses_times(self) -> bool:
        """True if the condition reads columns of the sessions table other than the id."""
        return False

    @property
    def constant(self) -> bool | None:
        """The result, if it is the same for every session; otherwise None."""
        return None

    def conjunction(self, name: str) -> Iterator[tuple[str, Condition]]:
        """Yields the conditions that must all hold, each with its name."""
        yield name, self

    def shape(self) -> Hashable:
        """Conditions of the same shape share one statement."""
        return type(self), self.rank, self.variant()

    def variant(self) -> Hashable:
        """Returns everything besides class and rank that changes the SQL."""
        return None

    @abstractmethod
    def parameters(self, name: str, dialect: Dialect) -> Parameters:
        """Returns the parameters that a statement of this shape takes."""

    @abstractmethod
    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        """Tests the session with this id."""

    def driver(self, name: str, context: Context) -> Driver:
        """Returns the rows to read. Called only if the rank is below `NO_DRIVER`."""
        raise NotImplementedError

    def drivers(self, name: str, context: Context) -> Iterator[Driver]:
        """Returns the rows to count: each of those of `driver`, some of them several times."""
        yield self.driver(name, context)

    def encoded(self) -> Any:
        """Returns the condition as JSON, for formats that outlive a process.

        Two conditions that differ only in the order of their parts have the same encoding. A change
        of a class or of its fields invalidates the cursors that users hold: see `ordering.VERSION`.
        """
        return repr(self)


@dataclass(frozen=True)
class _Combination(Condition):
    """Combines conditions. With the result `decided_by` of one part, it has that result."""

    parts: tuple[Condition, ...]
    decided_by: ClassVar[bool]

    def named(self, name: str) -> Iterator[tuple[str, Condition]]:
        return ((f"{name}_{place}", part) for place, part in enumerate(self.parts))

    @property
    def uses_times(self) -> bool:
        return any(part.uses_times for part in self.parts)

    @property
    def constant(self) -> bool | None:
        found = {part.constant for part in self.parts}
        if self.decided_by in found:
            return self.decided_by
        return None if None in found else not self.decided_by

    def variant(self) -> Hashable:
        return tuple(part.shape() for part in self.parts)

    def parameters(self, name: str, dialect: Dialect) -> Parameters:
        parameters: Parameters = {}
        for inner, part in self.named(name):
            parameters.update(part.parameters(inner, dialect))
        return parameters

    def truths(self, name: str, context: Context, session_id: Id) -> Iterator[Truth]:
        return (part.truth(inner, context, session_id) for inner, part in self.named(name))

    def encoded(self) -> Any:
        parts = sorted((part.encoded() for part in self.parts), key=json.dumps)
        return [type(self).__name__, parts]


class All(_Combination):
    """Every part holds. Without parts, it holds for every session."""

    decided_by = False

    def conjunction(self, name: str) -> Iterator[tuple[str, Condition]]:
        for inner, part in self.named(name):
            yield from part.conjunction(inner)

    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        return and_(true(), *self.truths(name, context, session_id))


class OfExisting(All):
    """Every part holds, and the session exists, whatever table its id is read from."""

    @property
    def uses_times(self) -> bool:
        return True


class AnyOf(_Combination):
    """Some part holds. Without parts, it holds for no session."""

    decided_by = True

    @property
    def rank(self) -> int:
        best = (best_of(part.conjunction(""))[1].rank for part in self.parts)
        return max(7, *best) if self.parts else NO_DRIVER

    def driver(self, name: str, context: Context) -> Driver:
        """Reads sessions for which the best condition of some part holds, so it is not exact."""
        selects = [
            select(rows.c.session_id).where(*conditions)
            for rows, conditions, _ in self.drivers(name, context)
        ]
        return Driver(union(*selects).subquery("candidates"), (), exact=False)

    def drivers(self, name: str, context: Context) -> Iterator[Driver]:
        for inner, part in self.named(name):
            best_name, best = best_of(part.conjunction(inner))
            yield from best.drivers(best_name, context)

    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        return or_(false(), *self.truths(name, context, session_id))


class Not(_Combination):
    """Its one part does not hold."""

    decided_by = False

    @property
    def constant(self) -> bool | None:
        inner = super().constant
        return None if inner is None else not inner

    def truth(self, name: str, context: Context, session_id: Id) -> Truth:
        return not_(*self.truths(name, context, session_id))


EVERYTHING = All(())
NOTHING = AnyOf(())


def best_of(parts: Iterable[tuple[str, Condition]]) -> tuple[str, Condition]:
    """Returns `NOTHING`, which cannot drive, if there are no parts."""
    return min(parts, key=lambda named: named[1].rank, default=("", NOTHING))
