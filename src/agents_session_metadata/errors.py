"""All errors of this package.

Each class derives from `SessionMetadataError` and from a built-in exception, and has attributes
that say what was wrong. Database errors are not wrapped: they are raised as SQLAlchemy raises them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from .text import escaped, quoted


class SessionMetadataError(Exception):
    """The base class of all errors of this package. Errors can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # What a constructor takes is not what it passes on, which is what would be kept.
        return type(self).__new__, (type(self), *self.args), vars(self)


class InvalidMetadataError(SessionMetadataError, ValueError):
    """A metadata key or value cannot be stored. Raised before anything is written.

    Attributes:
        key: The metadata key.
        path: The position inside the value, such as `$.a[2]`. `$` is the value itself.
    """

    def __init__(self, problem: str, *, key: object, path: str = "$") -> None:
        self.key = key
        self.path = path
        where = f" at {escaped(path)}" if path != "$" else ""
        super().__init__(f"metadata key {quoted(key)}{where}: {problem}")


def invalid_record(path: str, problem: str) -> InvalidMetadataError:
    """Returns the error for a path in an imported record, such as `$.items[2].created_at`."""
    error = InvalidMetadataError(problem, key="record", path=path)
    error.args = (f"{'the record' if path == '$' else escaped(path)} {problem}",)
    return error


class MetadataLimitError(SessionMetadataError, ValueError):
    """A limit of `MetadataLimits` was exceeded. Nothing was written.

    Attributes:
        limit: The name of the limit, such as `max_value_bytes`.
        key: The first metadata key that exceeds the limit.
        size: The actual size, in the unit of the limit.
    """

    def __init__(self, limit: str, *, key: str, size: int, allowed: int) -> None:
        self.limit = limit
        self.key = key
        self.size = size
        found = {
            "max_keys": f"too many metadata keys: {size} exceeds",
            "max_key_length": f"metadata key {quoted(key)} is too long: {size} characters exceed",
        }.get(limit, f"the value of metadata key {quoted(key)} is too large: {size} bytes exceed")
        super().__init__(f"{found} the limit of {allowed} (`{limit}`)")


class InvalidFilterError(SessionMetadataError, ValueError):
    """A filter is invalid.

    Attributes:
        path: The position inside the filter, such as `$.priority.$gte`. Control characters in keys
            are escaped.
    """

    def __init__(self, problem: str, *, path: str) -> None:
        self.path: str = escaped(path)
        super().__init__(f"invalid filter at {self.path}: {problem}")


class CorruptMetadataError(SessionMetadataError, ValueError):
    """A stored metadata value is not valid JSON. This package never writes such values.

    Attributes:
        session_id: The session that the value belongs to.
        key: Its metadata key.
    """

    def __init__(self, session_id: str, key: str) -> None:
        self.session_id = session_id
        self.key = key
        super().__init__(
            f"the stored value of metadata key {quoted(key)} of session {quoted(session_id)} is "
            "not valid JSON; to repair it, set or delete the key"
        )


class InvalidCursorError(SessionMetadataError, ValueError):
    """A page cursor is damaged, or belongs to another filter, order or scope."""

    def __init__(self) -> None:
        super().__init__(
            "the cursor is damaged or belongs to another query; pass the next_cursor of a page "
            "with the same filter, order_by and scope, or None for the first page"
        )


class InvalidPhaseError(SessionMetadataError, ValueError):
    """A phase is unknown, or cannot be reached from the current phase.

    Attributes:
        phase: The requested phase.
    """

    def __init__(self, problem: str, *, phase: object) -> None:
        self.phase = phase
        super().__init__(problem)


class ScopeError(SessionMetadataError, ValueError):
    """A call would change or delete a key of the scope, or write to a catalog that only reads.

    Nothing was written. Methods that need all sessions, such as `create_index`, also raise it on a
    scoped catalog.

    Attributes:
        key: The scope key; None for a catalog of `SessionCatalog.readable`.
    """

    def __init__(self, key: str | None, message: str | None = None) -> None:
        self.key = key
        super().__init__(
            message
            or f"metadata key {quoted(key)} is part of the scope and cannot be changed or deleted"
        )


class SessionExistsError(SessionMetadataError, ValueError):
    """A session with this id already exists.

    Attributes:
        session_id: The id.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {quoted(session_id)} already exists")


class SessionNotFoundError(SessionMetadataError, LookupError):
    """The session does not exist, or is outside the scope.

    Attributes:
        session_id: The requested id.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {quoted(session_id)} does not exist")


class ItemExistsError(SessionMetadataError, ValueError):
    """The history already has an item with the `id` of a new item. Nothing was written.

    Attributes:
        session_id: The session's id.
        item_id: The `id` of the item.
    """

    def __init__(self, session_id: str, item_id: str) -> None:
        self.session_id = session_id
        self.item_id = item_id
        super().__init__(f"session {quoted(session_id)} already has an item {quoted(item_id)}")


class ItemNotFoundError(SessionMetadataError, LookupError):
    """The session exists, but its history does not have the item.

    Attributes:
        session_id: The session's id.
        item_id: The requested item: the number of a row, or an item's own `id`.
    """

    def __init__(self, session_id: str, item_id: int | str) -> None:
        self.session_id = session_id
        self.item_id = item_id
        super().__init__(f"session {quoted(session_id)} has no item {quoted(item_id)}")


class SessionChangedError(SessionMetadataError, RuntimeError):
    """The history of a session is not what the caller expected. Nothing was written.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, session_id: str, problem: str = "its history has changed") -> None:
        self.session_id = session_id
        super().__init__(f"session {quoted(session_id)}: {problem}; read the history again")


class SessionPausedError(SessionMetadataError, RuntimeError):
    """A run of the session waits for approvals, and depends on its history. Nothing was written.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"a run of session {quoted(session_id)} waits for approvals; decide and resume it, or "
            "give it up with SessionRuns.discard"
        )


class SessionBusyError(SessionMetadataError, RuntimeError):
    """Another run of the session works or is interrupted.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, session_id: str, problem: str | None = None) -> None:
        self.session_id = session_id
        busy = "has a run that works or is interrupted; wait for its end, or pass wait="
        super().__init__(f"session {quoted(session_id)} {problem or busy}")


LeaseLostReason: TypeAlias = Literal["taken", "stopped", "deleted"]
"""Why a run has lost its lease."""


class LeaseLostError(SessionBusyError):
    """This run no longer holds its session. It cannot write history or state.

    Attributes:
        session_id: The session's id.
        reason: `"taken"` if another process goes on with the run or has begun another one after
            the lease had ended, `"stopped"` if the run was given up, `"deleted"` if its session
            was deleted.
    """

    def __init__(self, session_id: str, reason: LeaseLostReason) -> None:
        self.reason: LeaseLostReason = reason
        super().__init__(session_id, _LOST[reason])


_LOST: Mapping[LeaseLostReason, str] = {
    "taken": "was taken over by another process, after the lease of this run had ended",
    "stopped": "is no longer held by this run, because the run was given up",
    "deleted": "was deleted while the run worked",
}


class RunInterruptedError(SessionMetadataError, RuntimeError):
    """The process of a run of the session died, or its stream was left early.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"a run of session {quoted(session_id)} was interrupted; resume it, or pass "
            'interrupted="resume" or interrupted="discard"'
        )


class RunFailedError(SessionMetadataError, RuntimeError):
    """The run with the same key has failed: this call waited for it, or it was replaced.

    Attributes:
        session_id: The session's id.
        error: The type and the text of its error.
    """

    def __init__(self, session_id: str, error: str) -> None:
        self.session_id = session_id
        self.error = error
        super().__init__(f"the run of session {quoted(session_id)} failed: {error}")


class RunCancelledError(SessionMetadataError, RuntimeError):
    """The run was cancelled, or the run with the same key was given up.

    To begin anew, use another key.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"the run of session {quoted(session_id)} was cancelled or given up; to begin anew, "
            "use another key"
        )


class RunNotFoundError(SessionMetadataError, LookupError):
    """The session has no run that can be decided about or resumed.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {quoted(session_id)} has no run that waits or can go on")


class KeyReusedError(SessionMetadataError, ValueError):
    """The key of a request was used before with another input, another agent or other items.

    Attributes:
        session_id: The session's id.
        key: The key.
    """

    def __init__(self, session_id: str, key: str) -> None:
        self.session_id = session_id
        self.key = key
        super().__init__(
            f"key {quoted(key)} was used in session {quoted(session_id)} with another input, "
            "another agent or other items; use a new key for each request"
        )


class StateVersionError(SessionMetadataError, RuntimeError):
    """The stored state of a waiting run has a version that this SDK cannot read. It stays stored.

    Attributes:
        session_id: The session's id.
        version: The version of the state.
    """

    def __init__(self, session_id: str, version: object) -> None:
        self.session_id = session_id
        self.version = version
        super().__init__(
            f"the waiting run of session {quoted(session_id)} has the state version "
            f"{quoted(version)}, which the installed openai-agents cannot read; install the "
            "version of openai-agents that stored it, or a later one"
        )


class BudgetExceededError(SessionMetadataError, RuntimeError):
    """A budget is used up, or the cost of the next call is unknown. The model was not called.

    Attributes:
        limit: The limit that was exceeded: `cost` or `tokens`.
        spent: The amount that was spent.
        allowed: The amount that is allowed.
    """

    def __init__(self, limit: str, *, spent: Any, allowed: Any, problem: str = "") -> None:
        self.limit = limit
        self.spent = spent
        self.allowed = allowed
        super().__init__(
            f"{problem or 'the budget is used up'}: spent {spent} of {allowed} (`{limit}`)"
        )


class TablesMissingError(SessionMetadataError, RuntimeError):
    """Tables, or columns of a later version, are missing from the database; on SQLite, triggers.

    Only the feature that needs them raises this error. Metadata and history need no column that was
    added later.

    If metadata has rows but the sessions table is missing, the name of a table is probably wrong.
    The error is then raised even with `create_tables=True`, and nothing is created.

    Attributes:
        tables: The names of the missing tables and triggers. A column is `table.column`.
    """

    def __init__(self, tables: Sequence[str], problem: str | None = None) -> None:
        self.tables: tuple[str, ...] = tuple(tables)
        advice = (
            "create with create_tables=True, with `agent-sessions ddl --upgrade`, or by a "
            "migration from session_tables()"
        )
        names = ", ".join(self.tables)
        super().__init__(problem or f"missing from the database: {names}; {advice}")


class UnsupportedDialectError(SessionMetadataError, NotImplementedError):
    """The engine is for a database, or has a setting, that this package does not support.

    Attributes:
        dialect: The name of the database in SQLAlchemy.
    """

    def __init__(self, dialect: str, setting: str | None = None) -> None:
        self.dialect = dialect
        problem = f"is not supported with {setting}" if setting else "is not supported"
        remedy = "change this setting" if setting else "use SQLite, PostgreSQL, MariaDB or MySQL"
        super().__init__(f"database {quoted(dialect)} {problem}; {remedy}")


def install_advice(extra: str) -> str:
    return f"install agents-session-metadata[{extra}]"
