"""Metadata for the sessions of the OpenAI Agents SDK, in the database that keeps them.

`SQLAlchemyMetadataSession` is one session, `SessionCatalog` every session in one database,
`SessionLifecycle` and `SessionTracker` are what agents do with a session. Metadata keys that these
agree on are constants in `agents_session_metadata.keys`. Every error that the package raises on its
own account is a `SessionMetadataError`.
"""

from .catalog import SessionCatalog
from .errors import (
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
from .lifecycle import PhaseChange, ResumeDecision, ResumePolicy, SessionLifecycle
from .schema import SessionTables, session_tables
from .session import SQLAlchemyMetadataSession
from .tracking import ModelPrice, SessionTracker
from .types import (
    MetadataLimits,
    SessionInfo,
    SessionPage,
    Statistics,
    ToolStatistics,
    ValueCount,
)

__all__ = [
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
