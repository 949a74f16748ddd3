"""Metadata for the sessions of the OpenAI Agents SDK, stored in the same database.

`SQLAlchemyMetadataSession` is one session with metadata. `SessionCatalog` manages all sessions in a
database. `SessionLifecycle` and `SessionTracker` record the progress and the runs of a session. The
metadata keys that they use are constants in `agents_session_metadata.keys`. All errors of this
package derive from `SessionMetadataError`.

All but errors are imported on first use, because importing SQLAlchemy and the SDK takes longer than
most commands of the command line take to run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    BudgetExceededError,
    CorruptMetadataError,
    InvalidCursorError,
    InvalidFilterError,
    InvalidMetadataError,
    InvalidPhaseError,
    ItemExistsError,
    ItemNotFoundError,
    KeyReusedError,
    LeaseLostError,
    LeaseLostReason,
    MetadataLimitError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunNotFoundError,
    ScopeError,
    SessionBusyError,
    SessionChangedError,
    SessionExistsError,
    SessionMetadataError,
    SessionNotFoundError,
    SessionPausedError,
    StateVersionError,
    TablesMissingError,
    UnsupportedDialectError,
)
from .keys import normalize_agent

if TYPE_CHECKING:
    from .catalog import SessionCatalog
    from .core.definitions import CreateTrigger, TableGroup
    from .core.features import session_tables
    from .core.tables import SessionTables
    from .dialects.codes import is_unavailable
    from .history.pairs import recent_turns
    from .lifecycle import (
        FINAL_PHASES,
        PHASES,
        PhaseChange,
        ResumeDecision,
        ResumePolicy,
        ResumeReason,
        SessionLifecycle,
        resumable_sessions,
    )
    from .query.filters import FILTER_OPERATORS, Where, check_filter, filter_hint
    from .query.ordering import OrderBy
    from .query.pages import OnCorrupt
    from .replay import Replay, ReplayDifference, ReplayResult
    from .runs.approvals import Decision, PendingCall, RunFilter, RunInfo, RunPage, RunStatus
    from .runs.claim import (
        NewRunOptions,
        ResumeOptions,
        RunOptions,
        RunResult,
        SessionRun,
        StartOptions,
        StreamEvent,
    )
    from .runs.record import Cipher
    from .runs.runs import SessionRuns, StreamedRun
    from .session import SQLAlchemyMetadataSession
    from .tracking.budget import Budget, Remaining
    from .tracking.invocations import add_invocation
    from .tracking.titles import SessionTitler
    from .tracking.tracker import SessionTracker
    from .transfer.exports import OnConflict
    from .types import (
        MAX_KEY_LENGTH,
        DailyStatistics,
        DayStatistics,
        Erasure,
        Feedback,
        FeedbackKind,
        IndexInfo,
        ItemInfo,
        ItemPage,
        JSONObject,
        JSONValue,
        Metadata,
        MetadataLimits,
        OnClear,
        SearchHit,
        SearchPage,
        SessionChange,
        SessionInfo,
        SessionOptions,
        SessionPage,
        Statistics,
        TableSize,
        ToolStatistics,
        UsageRow,
        ValueCount,
    )
    from .usage.prices import ModelPrice

__all__ = [
    "FILTER_OPERATORS",
    "FINAL_PHASES",
    "MAX_KEY_LENGTH",
    "PHASES",
    "Budget",
    "BudgetExceededError",
    "Cipher",
    "CorruptMetadataError",
    "CreateTrigger",
    "DailyStatistics",
    "DayStatistics",
    "Decision",
    "Erasure",
    "Feedback",
    "FeedbackKind",
    "IndexInfo",
    "InvalidCursorError",
    "InvalidFilterError",
    "InvalidMetadataError",
    "InvalidPhaseError",
    "ItemExistsError",
    "ItemInfo",
    "ItemNotFoundError",
    "ItemPage",
    "JSONObject",
    "JSONValue",
    "KeyReusedError",
    "LeaseLostError",
    "LeaseLostReason",
    "Metadata",
    "MetadataLimitError",
    "MetadataLimits",
    "ModelPrice",
    "NewRunOptions",
    "OnClear",
    "OnConflict",
    "OnCorrupt",
    "OrderBy",
    "PendingCall",
    "PhaseChange",
    "Remaining",
    "Replay",
    "ReplayDifference",
    "ReplayResult",
    "ResumeDecision",
    "ResumeOptions",
    "ResumePolicy",
    "ResumeReason",
    "RunCancelledError",
    "RunFailedError",
    "RunFilter",
    "RunInfo",
    "RunInterruptedError",
    "RunNotFoundError",
    "RunOptions",
    "RunPage",
    "RunResult",
    "RunStatus",
    "SQLAlchemyMetadataSession",
    "ScopeError",
    "SearchHit",
    "SearchPage",
    "SessionBusyError",
    "SessionCatalog",
    "SessionChange",
    "SessionChangedError",
    "SessionExistsError",
    "SessionInfo",
    "SessionLifecycle",
    "SessionMetadataError",
    "SessionNotFoundError",
    "SessionOptions",
    "SessionPage",
    "SessionPausedError",
    "SessionRun",
    "SessionRuns",
    "SessionTables",
    "SessionTitler",
    "SessionTracker",
    "StartOptions",
    "StateVersionError",
    "Statistics",
    "StreamEvent",
    "StreamedRun",
    "TableGroup",
    "TableSize",
    "TablesMissingError",
    "ToolStatistics",
    "UnsupportedDialectError",
    "UsageRow",
    "ValueCount",
    "Where",
    "add_invocation",
    "check_filter",
    "filter_hint",
    "is_unavailable",
    "normalize_agent",
    "recent_turns",
    "resumable_sessions",
    "session_tables",
]

_MODULES = {
    "catalog": ["SessionCatalog"],
    "history.pairs": ["recent_turns"],
    "tracking.budget": ["Budget", "Remaining"],
    "transfer.exports": ["OnConflict"],
    "dialects.codes": ["is_unavailable"],
    "query.filters": ["FILTER_OPERATORS", "Where", "check_filter", "filter_hint"],
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
        "resumable_sessions",
    ],
    "usage.prices": ["ModelPrice"],
    "tracking.invocations": ["add_invocation"],
    "tracking.titles": ["SessionTitler"],
    "tracking.tracker": ["SessionTracker"],
    "runs.approvals": ["Decision", "PendingCall", "RunFilter", "RunInfo", "RunPage", "RunStatus"],
    "runs.runs": ["SessionRuns", "StreamedRun"],
    "runs.claim": [
        "NewRunOptions",
        "ResumeOptions",
        "RunOptions",
        "RunResult",
        "SessionRun",
        "StartOptions",
        "StreamEvent",
    ],
    "runs.record": ["Cipher"],
    "replay": ["Replay", "ReplayDifference", "ReplayResult"],
    "session": ["SQLAlchemyMetadataSession"],
    "core.definitions": ["CreateTrigger", "TableGroup"],
    "core.features": ["session_tables"],
    "core.tables": ["SessionTables"],
    "types": [
        "JSONObject",
        "JSONValue",
        "MAX_KEY_LENGTH",
        "Metadata",
        "OnClear",
        "DailyStatistics",
        "DayStatistics",
        "Erasure",
        "Feedback",
        "FeedbackKind",
        "IndexInfo",
        "ItemInfo",
        "ItemPage",
        "MetadataLimits",
        "SearchHit",
        "SearchPage",
        "SessionChange",
        "SessionInfo",
        "SessionOptions",
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
