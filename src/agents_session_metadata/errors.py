"""Every error this package raises on its own account.

Each class derives from `SessionMetadataError` and from the builtin that a caller would guess,
carries what was wrong as attributes and writes its own sentence. Database errors are not wrapped:
they pass through as SQLAlchemy raises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .quoting import escaped, quoted
from .values import MetadataSizeError, MetadataValueError


class SessionMetadataError(Exception):
    """The base of every error that this package raises. Errors can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # What a constructor takes is not what it passes on, which is what would be kept.
        return _restored, (type(self), self.args, vars(self))


def _restored(
    kind: type[SessionMetadataError], arguments: tuple[Any, ...], state: dict[str, Any]
) -> SessionMetadataError:
    error = kind.__new__(kind, *arguments)
    vars(error).update(state)
    return error


class InvalidMetadataError(SessionMetadataError, MetadataValueError):
    """A metadata key or value cannot be stored. Raised before anything is written.

    Attributes:
        key: The metadata key concerned.
        path: The place inside the value, such as `$.a[2]`; `$` is the value itself.
    """

    def __init__(self, problem: str, *, key: object, path: str = "$") -> None:
        self.key = key
        self.path = path
        where = f" at {escaped(path)}" if path != "$" else ""
        ValueError.__init__(self, f"metadata key {quoted(key)}{where}: {problem}")


class MetadataLimitError(SessionMetadataError, MetadataSizeError):
    """A limit of `MetadataLimits` was exceeded. Nothing was written.

    Attributes:
        limit: The name of the limit, such as `max_value_bytes`.
        key: The first metadata key that exceeds it.
        size: The size that was found, in the unit of the limit.
    """

    def __init__(self, limit: str, *, key: str, size: int, allowed: int) -> None:
        self.limit = limit
        self.key = key
        self.size = size
        unit = {"max_keys": "keys", "max_key_length": "characters"}.get(limit, "bytes")
        ValueError.__init__(
            self,
            f"metadata key {quoted(key)}: {size} {unit} exceed the limit of {allowed} (`{limit}`)",
        )


class InvalidFilterError(SessionMetadataError, ValueError):
    """A filter is invalid.

    Attributes:
        path: The place inside the filter, such as `$.priority.$gte`. Control characters in keys
            are escaped.
    """

    def __init__(self, problem: str, *, path: str) -> None:
        self.path = escaped(path)
        super().__init__(f"invalid filter at {self.path}: {problem}")


class CorruptMetadataError(SessionMetadataError, ValueError):
    """A stored metadata value is NULL or not valid JSON. Only other software writes such values.

    Attributes:
        session_id: The session that the value belongs to.
        key: Its metadata key.
    """

    def __init__(self, session_id: str, key: str) -> None:
        self.session_id = session_id
        self.key = key
        super().__init__(
            f"the stored value of metadata key {quoted(key)} of session {quoted(session_id)} is "
            "not valid JSON; set or delete the key to repair it"
        )


class InvalidCursorError(SessionMetadataError, ValueError):
    """A page cursor is damaged, or belongs to another filter, order or scope."""

    def __init__(self) -> None:
        super().__init__(
            "the cursor is damaged or belongs to another question; pass the next_cursor of a page "
            "with the same filter, order_by and scope, or None for the first page"
        )


class InvalidPhaseError(SessionMetadataError, ValueError):
    """A phase is unknown, or the session cannot move to it from where it is.

    Attributes:
        phase: The phase that was asked for.
    """

    def __init__(self, problem: str, *, phase: object) -> None:
        self.phase = phase
        super().__init__(problem)


class ScopeError(SessionMetadataError, ValueError):
    """A key that a scope fixes was about to be changed or deleted. Nothing was written.

    A method that is about all sessions, called within a scope, raises it as well.

    Attributes:
        key: The scope key.
    """

    def __init__(self, key: str, message: str | None = None) -> None:
        self.key = key
        super().__init__(
            message
            or f"metadata key {quoted(key)} is fixed by the scope; it cannot be changed here"
        )


class SessionExistsError(SessionMetadataError, ValueError):
    """A session with this id exists already.

    Attributes:
        session_id: The id that is taken.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {quoted(session_id)} exists already")


class SessionNotFoundError(SessionMetadataError, LookupError):
    """The session does not exist, or not within the scope.

    Attributes:
        session_id: The id that was looked for.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {quoted(session_id)} does not exist here")


class SessionChangedError(SessionMetadataError, RuntimeError):
    """The history of a session is not what the caller expected. Nothing was written.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, session_id: str, problem: str = "its history has changed") -> None:
        self.session_id = session_id
        super().__init__(f"session {quoted(session_id)}: {problem}; read it again")


class SessionPausedError(SessionMetadataError, RuntimeError):
    """The session has a paused run that depends on its history. Nothing was written.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {quoted(session_id)} has a paused run, which depends on its history; "
            "finish or delete the run first"
        )


class RunClaimedError(SessionMetadataError, RuntimeError):
    """A paused run is claimed by another process, or was when that process died.

    Attributes:
        session_id: The session's id.
        crashed: Whether the lease has ended without a result, so that the claimer has probably
            crashed.
    """

    def __init__(self, session_id: str, *, crashed: bool = False) -> None:
        self.session_id = session_id
        self.crashed = crashed
        name = f"the paused run of session {quoted(session_id)}"
        super().__init__(
            f"{name} was claimed by a process that did not finish it; tools that ran since would "
            "run again; pass after_crash=True to claim it all the same"
            if crashed
            else f"{name} is claimed by another process; try again when its lease has ended"
        )


class StateVersionError(SessionMetadataError, RuntimeError):
    """The stored state of a paused run has a version that this SDK cannot read. It stays stored.

    Attributes:
        session_id: The session's id.
        version: The version of the state.
    """

    def __init__(self, session_id: str, version: object) -> None:
        self.session_id = session_id
        self.version = version
        super().__init__(
            f"the paused run of session {quoted(session_id)} has the state version "
            f"{quoted(version)}, which the installed openai-agents cannot read; install the "
            "version of openai-agents that paused it, or a later one"
        )


class BudgetExceededError(SessionMetadataError, RuntimeError):
    """A budget is used up, or the cost of the next call is unknown; the model was not called.

    Attributes:
        limit: What is limited: `cost` or `tokens`.
        spent: How much was spent.
        allowed: How much is allowed.
    """

    def __init__(self, limit: str, *, spent: Any, allowed: Any, problem: str = "") -> None:
        self.limit = limit
        self.spent = spent
        self.allowed = allowed
        super().__init__(
            f"{problem or 'the budget is used up'}: spent {spent} of {allowed} (`{limit}`)"
        )


class TablesMissingError(SessionMetadataError, RuntimeError):
    """Tables (or, on SQLite, triggers) that metadata needs are not in the database.

    Attributes:
        tables: The names of everything that is missing.
    """

    def __init__(self, tables: Sequence[str]) -> None:
        self.tables: tuple[str, ...] = tuple(tables)
        super().__init__(
            f"the database lacks {', '.join(self.tables)}; create what is missing with "
            "create_tables=True, with `agent-sessions ddl`, or by a migration from session_tables()"
        )


class TriggersNotAllowedError(SessionMetadataError, RuntimeError):
    """The database user may not create the triggers that maintain an index."""

    def __init__(self) -> None:
        super().__init__(
            "the database user may not create the triggers that maintain an index; on MySQL and "
            "MariaDB, grant TRIGGER on the database and, if the server writes a binary log, set "
            "log_bin_trust_function_creators = 1; on PostgreSQL, grant TRIGGER on the tables of "
            "sessions and metadata and CREATE on their schema, or create the index as their owner"
        )


class TextIndexMissingError(SessionMetadataError, RuntimeError):
    """Nothing can be searched, because nobody has created the text index."""

    def __init__(self) -> None:
        super().__init__(
            'there is no text index; create it once with `await catalog.create_index("$text")` or '
            "`agent-sessions index create '$text'`"
        )


class InvalidSearchError(SessionMetadataError, ValueError):
    """A search query has no word to look for, or too many terms."""


class UnsupportedDialectError(SessionMetadataError, NotImplementedError):
    """The engine speaks to a database that this package does not support.

    Attributes:
        dialect: SQLAlchemy's name of the database.
    """

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        super().__init__(
            f"database {quoted(dialect)} is not supported; use SQLite, PostgreSQL, MariaDB or MySQL"
        )
