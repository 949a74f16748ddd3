"""Orders of sessions, and positions in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import SearchKey, key_problem

OrderBy: TypeAlias = str
"""An order of sessions: `updated_at`, `created_at`, `session_id` or a metadata key, with a leading
`-` for descending."""

COLUMNS = ("updated_at", "created_at", "session_id")


class Position(NamedTuple):
    """The last session of a page.

    `time` is in its stored form. `value` is None also if the session does not have the key.
    """

    session_id: str
    time: str | None = None
    value: SearchKey | None = None

    def parameters(self) -> dict[str, Any]:
        """The parameters of a position by time, by id or by both."""
        time = {} if self.time is None else {"after_time": self.time}
        return {"after_id": self.session_id, **time}


@dataclass(frozen=True)
class Ordering:
    """An order of sessions, by a column or by a metadata key.

    By a column: then by id, in the same direction. By a metadata key: sessions without it come last
    in both directions; then by most recent activity, then by id ascending. If `native`, ids can
    sort as in the primary key instead of by code point.
    """

    column: str | None
    descending: bool
    key: str | None = None
    native: bool = False

    @classmethod
    def parse(cls, order_by: str) -> Ordering:
        if not isinstance(order_by, str):
            raise TypeError(f"order_by must be a string, got {type(order_by).__name__}")
        descending, name = order_by.startswith("-"), order_by.removeprefix("-")
        if name in COLUMNS:
            return cls(name, descending)
        problem = key_problem(name)
        if name.startswith("-"):
            problem = "sessions cannot be ordered by a key that begins with -"
        elif len(name) > MAX_KEY_LENGTH:
            problem = f"a key can have at most {MAX_KEY_LENGTH} characters"
        if problem is not None:
            raise ValueError(
                f"order_by must be {', '.join(COLUMNS)} or a metadata key, with - for descending: "
                f"{problem}"
            )
        return cls(None, descending, str.__str__(name))

    @property
    def time(self) -> str | None:
        if self.key is not None:
            return "updated_at"
        return None if self.column == "session_id" else self.column

    @property
    def shape(self) -> Any:
        """The key is not part of the shape: it is a parameter."""
        return self.column, self.descending, self.native

    def encoded(self) -> list[Any]:
        """Returns the order as JSON, for cursors; version 1."""
        kind, name = ("column", self.column) if self.key is None else ("key", self.key)
        return [kind, name, "descending" if self.descending else "ascending"]


WALK = Ordering("session_id", descending=False, native=True)
"""By primary key: the order in which all sessions are walked."""
