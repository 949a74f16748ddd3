"""Metadata for the sessions of the OpenAI Agents SDK, in the database that keeps them.

`SQLAlchemyMetadataSession` is one session, `SessionCatalog` every session in one database,
`SessionLifecycle` and `SessionTracker` are what agents do with a session. Metadata keys that these
agree on are constants in `agents_session_metadata.keys`. Every error that the package raises on its
own account is a `SessionMetadataError`.

Importing the package loads nothing else: SQLAlchemy and the SDK take longer to import than most
commands take to run. Each name is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .catalog import SessionCatalog
    from .errors import (
        BudgetExceededError,
        CorruptMetadataError,
        InvalidCursorError,
        InvalidFilterError,
        InvalidMetadataError,
        InvalidPhaseError,
        InvalidSearchError,
        MetadataLimitError,
        RunClaimedError,
        ScopeError,
        SessionChangedError,
        SessionExistsError,
        SessionMetadataError,
        SessionNotFoundError,
        SessionPausedError,
        StateVersionError,
        TablesMissingError,
        TextIndexMissingError,
        TriggersNotAllowedError,
        UnsupportedDialectError,
    )
    from .keys import normalize_agent
    from .runs.budget import Budget
    from .runs.claims import ClaimedRun
    from .runs.lifecycle import PhaseChange, ResumeDecision, ResumePolicy, SessionLifecycle
    from .runs.paused import PausedRuns
    from .runs.prices import ModelPrice
    from .runs.records import Decision, PausedPage, PausedRun, PendingCall
    from .runs.titles import SessionTitler
    from .runs.tracking import SessionTracker
    from .session import SQLAlchemyMetadataSession
    from .storage.tables import SessionTables, session_tables
    from .types import (
        IndexInfo,
        ItemInfo,
        ItemPage,
        MetadataLimits,
        SearchHit,
        SearchPage,
        SessionInfo,
        SessionPage,
        Statistics,
        ToolStatistics,
        UsageRow,
        ValueCount,
    )

__all__ = [
    "Budget",
    "BudgetExceededError",
    "ClaimedRun",
    "CorruptMetadataError",
    "Decision",
    "IndexInfo",
    "InvalidCursorError",
    "InvalidFilterError",
    "InvalidMetadataError",
    "InvalidPhaseError",
    "InvalidSearchError",
    "ItemInfo",
    "ItemPage",
    "MetadataLimitError",
    "MetadataLimits",
    "ModelPrice",
    "PausedPage",
    "PausedRun",
    "PausedRuns",
    "PendingCall",
    "PhaseChange",
    "ResumeDecision",
    "ResumePolicy",
    "RunClaimedError",
    "SQLAlchemyMetadataSession",
    "ScopeError",
    "SearchHit",
    "SearchPage",
    "SessionCatalog",
    "SessionChangedError",
    "SessionExistsError",
    "SessionInfo",
    "SessionLifecycle",
    "SessionMetadataError",
    "SessionNotFoundError",
    "SessionPage",
    "SessionPausedError",
    "SessionTables",
    "SessionTitler",
    "SessionTracker",
    "StateVersionError",
    "Statistics",
    "TablesMissingError",
    "TextIndexMissingError",
    "ToolStatistics",
    "TriggersNotAllowedError",
    "UnsupportedDialectError",
    "UsageRow",
    "ValueCount",
    "normalize_agent",
    "session_tables",
]

_MODULES = {
    "catalog": ["SessionCatalog"],
    "errors": [
        "BudgetExceededError",
        "CorruptMetadataError",
        "InvalidCursorError",
        "InvalidFilterError",
        "InvalidMetadataError",
        "InvalidPhaseError",
        "InvalidSearchError",
        "MetadataLimitError",
        "RunClaimedError",
        "ScopeError",
        "SessionChangedError",
        "SessionExistsError",
        "SessionMetadataError",
        "SessionNotFoundError",
        "SessionPausedError",
        "StateVersionError",
        "TablesMissingError",
        "TextIndexMissingError",
        "TriggersNotAllowedError",
        "UnsupportedDialectError",
    ],
    "keys": ["normalize_agent"],
    "runs.budget": ["Budget"],
    "runs.lifecycle": ["PhaseChange", "ResumeDecision", "ResumePolicy", "SessionLifecycle"],
    "runs.prices": ["ModelPrice"],
    "runs.titles": ["SessionTitler"],
    "runs.tracking": ["SessionTracker"],
    "runs.claims": ["ClaimedRun"],
    "runs.paused": ["PausedRuns"],
    "runs.records": ["Decision", "PausedPage", "PausedRun", "PendingCall"],
    "session": ["SQLAlchemyMetadataSession"],
    "storage.tables": ["SessionTables", "session_tables"],
    "types": [
        "IndexInfo",
        "ItemInfo",
        "ItemPage",
        "MetadataLimits",
        "SearchHit",
        "SearchPage",
        "SessionInfo",
        "SessionPage",
        "Statistics",
        "ToolStatistics",
        "UsageRow",
        "ValueCount",
    ],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f".{name}", __name__)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
