"""Metadata for the sessions of the OpenAI Agents SDK, in the database that keeps them.

`SQLAlchemyMetadataSession` is one session, `SessionCatalog` every session in one database,
`SessionLifecycle` and `SessionTracker` are what agents do with a session. Metadata keys that these
agree on are constants in `agents_session_metadata.keys`. Every error that the package raises on its
own account is a `SessionMetadataError`.

The SDK takes longer to import than all of this package. What needs it is imported when it is asked
for, so that the command line need not wait.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .catalog import SessionCatalog
from .errors import (
    CorruptMetadataError,
    InvalidCursorError,
    InvalidFilterError,
    InvalidMetadataError,
    InvalidPhaseError,
    MetadataLimitError,
    ScopeError,
    SessionExistsError,
    SessionMetadataError,
    SessionNotFoundError,
    TablesMissingError,
    UnsupportedDialectError,
)
from .keys import normalize_agent
from .runs.lifecycle import PhaseChange, ResumeDecision, ResumePolicy, SessionLifecycle
from .storage.tables import SessionTables, session_tables
from .types import (
    MetadataLimits,
    SessionInfo,
    SessionPage,
    Statistics,
    ToolStatistics,
    ValueCount,
)

if TYPE_CHECKING:
    from .runs.tracking import ModelPrice, SessionTracker
    from .session import SQLAlchemyMetadataSession

__all__ = [
    "CorruptMetadataError",
    "InvalidCursorError",
    "InvalidFilterError",
    "InvalidMetadataError",
    "InvalidPhaseError",
    "MetadataLimitError",
    "MetadataLimits",
    "ModelPrice",
    "PhaseChange",
    "ResumeDecision",
    "ResumePolicy",
    "SQLAlchemyMetadataSession",
    "ScopeError",
    "SessionCatalog",
    "SessionExistsError",
    "SessionInfo",
    "SessionLifecycle",
    "SessionMetadataError",
    "SessionNotFoundError",
    "SessionPage",
    "SessionTables",
    "SessionTracker",
    "Statistics",
    "TablesMissingError",
    "ToolStatistics",
    "UnsupportedDialectError",
    "ValueCount",
    "normalize_agent",
    "session_tables",
]

_BUILT_ON_THE_SDK = {
    "ModelPrice": "runs.tracking",
    "SQLAlchemyMetadataSession": "session",
    "SessionTracker": "runs.tracking",
}
"""Public names by the modules that need the SDK."""


if not TYPE_CHECKING:  # Else every name would be there for type checkers.

    def __getattr__(name: str) -> Any:
        if name not in _BUILT_ON_THE_SDK:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_BUILT_ON_THE_SDK[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
