"""Chooses the index that can answer a query: that of a key for which one value is required."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.query.conditions import Contains, Equals, MetadataCondition, TimeBound
from agents_session_metadata.query.logic import All, Condition, Context, Driver
from agents_session_metadata.query.statements import NAME

_BY_ID = frozenset({0, 2})
"""The ranks of conditions on the id, which need no index."""
LEADER = "leader"
"""Prefixes the parameters of the condition that the walked entries fulfill."""


@dataclass(frozen=True)
class Leading(Condition):
    """A condition that drives before all others."""

    part: Condition

    @property
    def rank(self) -> int:
        return 0

    def variant(self) -> Hashable:
        return self.part.shape()

    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        return self.part.parameters(name, dialect)

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        return self.part.truth(name, context, session_id)

    def driver(self, name: str, context: Context) -> Driver:
        return self.part.driver(name, context)

    def encoded(self) -> list[Any]:
        return self.part.encoded()


@dataclass(frozen=True)
class Plan:
    """A walk of the entries that fulfill `leader`. The other conditions are checked."""

    leader: Equals
    others: tuple[Condition, ...]

    @classmethod
    def of(cls, condition: Condition, keys: Collection[str] | None) -> Plan | None:
        """Returns None if no index serves the condition; without `keys`, any key can have one."""
        if keys is not None and not keys:
            return None
        parts = [part for _, part in condition.conjunction(NAME)]
        if any(part.rank in _BY_ID for part in parts):
            return None
        for part in parts:
            if is_single(part) and isinstance(part, Equals) and (keys is None or part.key in keys):
                return cls(part, tuple(other for other in parts if other is not part))
        return None

    @property
    def condition(self) -> Condition:
        return All(self.others)

    @property
    def rivals(self) -> list[MetadataCondition]:
        """The other conditions that might hold for few sessions."""
        return [part for part in self.others if isinstance(part, MetadataCondition)]

    def led_by(self, rival: MetadataCondition) -> Condition:
        rest = (part for part in (self.leader, *self.others) if part is not rival)
        return All((Leading(rival), *rest))

    @property
    def shape(self) -> Hashable:
        """Everything besides the other conditions that changes the SQL of the walk."""
        return self.leader.shape()

    def parameters(self, dialect: Dialect) -> dict[str, Any]:
        return {
            **self.leader.parameters(LEADER, dialect),
            "walk_key": self.leader.key,
            "walk_of_list": int(isinstance(self.leader, Contains)),
            "walk_value": self.leader.values[0].indexed,
        }


def is_of_activity(part: Condition) -> bool:
    """True if the condition limits the time of activity, by which entries are sorted."""
    return isinstance(part, TimeBound) and part.column == "updated_at"


def is_single(part: Condition) -> bool:
    """True if the condition requires one value that the index distinguishes from all others."""
    return isinstance(part, Equals) and part.reads_one_key
