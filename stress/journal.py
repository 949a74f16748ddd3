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
        answers: How often the model was asked, by the id of the session.
        tools: How often the tool ran, by the id of its call in a run.
        seen: The calls whose output a model had: it was recorded.
        repeated: Those of them whose tool ran again afterwards.
    """

    def __init__(self) -> None:
        self.acknowledged: set[Call] = set()
        self.unknown: set[Call] = set()
        self.errors: Counter[str] = Counter()
        self.strange: list[str] = []
        self.retried: Counter[str] = Counter()
        self.slowest = 0.0
        self.answers: Counter[str] = Counter()
        self.tools: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.repeated: set[str] = set()

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
        self.count_error(name_of(error), repr(error) if is_strange(error) else None)

    def count_error(self, name: str, strange: str | None) -> None:
        """Count an error, and write it down if nobody should raise it."""
        self.errors[name] += 1
        if strange is not None:
            self.strange.append(strange)

    def use(self, call_id: str) -> None:
        """Write down that a run's tool has begun."""
        self.tools[call_id] += 1
        if call_id in self.seen:
            self.repeated.add(call_id)

    def see(self, session_id: str, call_ids: list[str]) -> None:
        """Write down that a model is asked in a run, with the outputs of these calls."""
        self.answers[session_id] += 1
        self.seen.update(call_ids)

    def watch(self, engine: AsyncEngine) -> None:
        """Count the errors of an engine that the package takes for passing ones."""

        @event.listens_for(engine.sync_engine, "handle_error")
        def count(context: Any) -> None:
            error = context.sqlalchemy_exception
            if isinstance(error, DBAPIError) and error_code(error) in TRANSIENT:
                self.retried[str(error_code(error))] += 1


def is_strange(error: BaseException) -> bool:
    """Whether it is neither SQLAlchemy's nor an `OSError`, such as asyncpg's refused connection."""
    return not isinstance(error, (SQLAlchemyError, OSError))


def name_of(error: BaseException) -> str:
    """Its class, and its code if it has one."""
    if not isinstance(error, DBAPIError):
        return type(error).__name__
    original = error.orig
    code = getattr(original, "args", ())[:1]
    if code and isinstance(code[0], int):
        return f"{type(error).__name__} {code[0]}"
    named = getattr(original, "sqlstate", None) or getattr(original, "sqlite_errorname", None)
    return f"{type(error).__name__} {named}" if named else type(error).__name__
