"""Orders of sessions, and positions in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

OrderBy: TypeAlias = Literal[
    "updated_at", "-updated_at", "created_at", "-created_at", "session_id", "-session_id"
]
"""An order of sessions; `-` is for descending."""

ORDERS: tuple[str, ...] = get_args(OrderBy)


class Position(NamedTuple):
    """Where a page ended: the stored form of what it is sorted by, and the last session's id."""

    sorted_by: str | None
    session_id: str


@dataclass(frozen=True)
class Ordering:
    """An order of sessions: by a column of theirs, then by id."""

    column: Literal["updated_at", "created_at", "session_id"]
    descending: bool
    native: bool = False
    """Whether ids may sort as the primary key does, instead of by code point."""

    @classmethod
    def parse(cls, order_by: str) -> Ordering:
        """Read an `order_by`.

        Raises:
            ValueError: If it is none of `ORDERS`.
        """
        if order_by not in ORDERS:
            raise ValueError(f"order_by must be one of {', '.join(ORDERS)}, not {order_by!r}")
        return cls(order_by.removeprefix("-"), order_by.startswith("-"))  # type: ignore[arg-type]  # checked above


WALK = Ordering("session_id", descending=False, native=True)
"""By primary key: the order in which everything is walked through."""
