"""Metadata for the sessions of the OpenAI Agents SDK, stored in the same database.

`SQLAlchemyMetadataSession` is one session with metadata. `SessionCatalog` manages all sessions in a
database. `SessionLifecycle` and `SessionTracker` record the progress and the runs of a session. The
metadata keys that they use are constants in `agents_session_metadata.keys`. All errors of this
package derive from `SessionMetadataError`.

Each name is imported on first use, because importing SQLAlchemy and the SDK takes longer than most
commands of the command line take to run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .catalog import SessionCatalog
    from .core.definitions import CreateTrigger, TableGroup
    from .core.tables import SessionTables, session_tables
    from .errors import (
        BudgetExceededError,
        CorruptMetadataError,
        InvalidCursorError,
        InvalidFilterError,
        InvalidMetadataError,
        InvalidPhaseError,
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
        TriggersNotAllowedError,
        UnsupportedDialectError,
    )
    from .keys import normalize_agent
    from .lifecycle import (
        FINAL_PHASES,
        PHASES,
        PhaseChange,
        ResumeDecision,
        ResumePolicy,
        ResumeReason,
        SessionLifecycle,
    )
    from .query.filters import Where
    from .query.ordering import OrderBy
    from .query.pages import OnCorrupt
    from .runs.claims import ClaimedRun
    from .runs.paused import PausedRuns
    from .runs.rows import Decision, PausedPage, PausedRun, PendingCall
    from .session import SQLAlchemyMetadataSession
    from .tracking.budget import Budget
    from .tracking.titles import SessionTitler
    from .tracking.tracker import SessionTracker
    from .transfer.exports import OnConflict
    from .types import (
        MAX_KEY_LENGTH,
        IndexInfo,
        ItemInfo,
        ItemPage,
        JSONValue,
        Metadata,
        MetadataLimits,
        OnClear,
        SearchHit,
        SearchPage,
        SessionInfo,
        SessionPage,
        Statistics,
        TableSize,
        ToolStatistics,
        UsageRow,
        ValueCount,
    )
    from .usage.prices import ModelPrice

__all__ = [
    "FINAL_PHASES",
    "MAX_KEY_LENGTH",
    "PHASES",
    "Budget",
    "BudgetExceededError",
    "ClaimedRun",
    "CorruptMetadataError",
    "CreateTrigger",
    "Decision",
    "IndexInfo",
    "InvalidCursorError",
    "InvalidFilterError",
    "InvalidMetadataError",
    "InvalidPhaseError",
    "ItemInfo",
    "ItemPage",
    "JSONValue",
    "Metadata",
    "MetadataLimitError",
    "MetadataLimits",
    "ModelPrice",
    "OnClear",
    "OnConflict",
    "OnCorrupt",
    "OrderBy",
    "PausedPage",
    "PausedRun",
    "PausedRuns",
    "PendingCall",
    "PhaseChange",
    "ResumeDecision",
    "ResumePolicy",
    "ResumeReason",
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
    "TableGroup",
    "TableSize",
    "TablesMissingError",
    "ToolStatistics",
    "TriggersNotAllowedError",
    "UnsupportedDialectError",
    "UsageRow",
    "ValueCount",
    "Where",
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
        "TriggersNotAllowedError",
        "UnsupportedDialectError",
    ],
    "keys": ["normalize_agent"],
    "tracking.budget": ["Budget"],
    "transfer.exports": ["OnConflict"],
    "query.filters": ["Where"],
    "query.ordering": ["OrderBy"],
    "query.pages": ["OnCorrupt"],
    "lifecycle": [
        "FINAL_PHASES",
        "PHASES",
        "PhaseChange",
        "ResumeDecision",
        "ResumePolicy",
        "ResumeReason",
        "SessionLifecycle",
    ],
    "usage.prices": ["ModelPrice"],
    "tracking.titles": ["SessionTitler"],
    "tracking.tracker": ["SessionTracker"],
    "runs.claims": ["ClaimedRun"],
    "runs.paused": ["PausedRuns"],
    "runs.rows": ["Decision", "PausedPage", "PausedRun", "PendingCall"],
    "session": ["SQLAlchemyMetadataSession"],
    "core.definitions": ["CreateTrigger", "TableGroup"],
    "core.tables": ["SessionTables", "session_tables"],
    "types": [
        "JSONValue",
        "MAX_KEY_LENGTH",
        "Metadata",
        "OnClear",
        "IndexInfo",
        "ItemInfo",
        "ItemPage",
        "MetadataLimits",
        "SearchHit",
        "SearchPage",
        "SessionInfo",
        "SessionPage",
        "Statistics",
        "TableSize",
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
