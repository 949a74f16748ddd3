"""What a load tried, what was acknowledged, and what became of the rest."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.dialects.codes import TRANSIENT, error_code


class Call(NamedTuple):
    """One call of the package; its text is stored with what it writes."""

    kind: str
    writer: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.writer} {self.number}"


class Journal:
    """What was done to one database.

    Attributes:
        acknowledged: The calls that returned.
        unknown: The calls that raised, or never came back: each may have been applied, once.
        errors: What they raised, counted by name and code.
        strange: Errors that are neither SQLAlchemy's nor a refused connection's.
        retried: Errors after which the package tried again by itself, counted by code.
        slowest: The longest that a call took to raise, in seconds.
    """

    def __init__(self) -> None:
        self.acknowledged: set[Call] = set()
        self.unknown: set[Call] = set()
        self.errors: Counter[str] = Counter()
        self.strange: list[BaseException] = []
        self.retried: Counter[str] = Counter()
        self.slowest = 0.0

    def begin(self, call: Call) -> None:
        """Write down that a call is about to be made."""
        self.unknown.add(call)

    def acknowledge(self, call: Call) -> None:
        """Write down that it returned."""
        self.unknown.remove(call)
        self.acknowledged.add(call)

    def fail(self, error: BaseException, seconds: float = 0.0) -> None:
        """Write down what a call raised; whether it was applied is not known."""
        self.slowest = max(self.slowest, seconds)
        self.errors[_name(error)] += 1
        # asyncpg's refused connection is an OSError; SQLAlchemy passes it on as it is.
        if not isinstance(error, (SQLAlchemyError, OSError)):
            self.strange.append(error)

    def watch(self, engine: AsyncEngine) -> None:
        """Count the errors of an engine that the package takes for passing ones."""

        @event.listens_for(engine.sync_engine, "handle_error")
        def count(context: Any) -> None:
            error = context.sqlalchemy_exception
            if isinstance(error, DBAPIError) and error_code(error) in TRANSIENT:
                self.retried[str(error_code(error))] += 1


def _name(error: BaseException) -> str:
    if not isinstance(error, DBAPIError):
        return type(error).__name__
    original = error.orig
    code = getattr(original, "args", ())[:1]
    if code and isinstance(code[0], int):
        return f"{type(error).__name__} {code[0]}"
    named = getattr(original, "sqlstate", None) or getattr(original, "sqlite_errorname", None)
    return f"{type(error).__name__} {named}" if named else type(error).__name__
