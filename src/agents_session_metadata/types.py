"""Plain data that the package takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from . import values
from .errors import InvalidMetadataError, MetadataLimitError
from .values import MAX_KEY_LENGTH as MAX_KEY_LENGTH  # noqa: PLC0414  # re-exported
from .values import JSONValue as JSONValue  # noqa: PLC0414  # re-exported

Metadata: TypeAlias = "dict[str, Any]"
"""The metadata of one session as it is read. Its values are `JSONValue`s, which the reader knows
more about than a type checker."""

OnClear: TypeAlias = Literal["delete", "keep"]
"""What `clear_session()` does: end the session, or empty its history only."""


@dataclass(frozen=True)
class MetadataLimits(values.MetadataLimits):
    """How much metadata one session may have.

    Attributes:
        max_keys: Keys per session.
        max_key_length: Characters per key; at most 255, the width of the column.
        max_value_bytes: Bytes per value, counted as compact JSON text in UTF-8 with non-ASCII
            characters unescaped.

    Raises:
        ValueError: If a limit is not a positive integer, or `max_key_length` is over 255.
    """

    value_error = InvalidMetadataError
    size_error = MetadataLimitError


@dataclass(frozen=True)
class SessionInfo:
    """One session, as a catalog lists it.

    Attributes:
        session_id: The session's id.
        created_at: When its row was made; aware, UTC.
        updated_at: When its history last changed; aware, UTC. Metadata does not move it.
        metadata: The stored keys that were asked for, with their values.
        item_count: Number of items in the history, or None if it was not asked for.
        preview: The beginning of the first user message, or None if there is none, if it is
            encrypted, or if it was not asked for.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    metadata: Metadata
    item_count: int | None = None
    preview: str | None = None


@dataclass(frozen=True)
class SessionPage:
    """A page of sessions.

    Attributes:
        sessions: The sessions, in the order asked for.
        next_cursor: What to pass as `cursor` for the next page; None on the last one.
    """

    sessions: list[SessionInfo]
    next_cursor: str | None


@dataclass(frozen=True)
class ItemInfo:
    """One item of a history.

    Attributes:
        item_id: The id of its row; it grows with time, across all sessions of a database.
        created_at: When it was stored; aware, UTC.
        item: The item, as the SDK's `get_items()` returns it.
    """

    item_id: int
    created_at: datetime
    item: dict[str, Any]


@dataclass(frozen=True)
class ItemPage:
    """A page of a history.

    Attributes:
        items: The items, in the order asked for.
        next_cursor: What to pass as `cursor` for the next page; None on the last one.
    """

    items: list[ItemInfo]
    next_cursor: str | None


@dataclass(frozen=True)
class ValueCount:
    """How many sessions carry a value.

    Attributes:
        value: The scalar. Numbers that are equal are one value; whole ones are given as int.
        count: Number of sessions.
    """

    value: str | int | float | bool | None
    count: int


@dataclass(frozen=True)
class ToolStatistics:
    """What was recorded of one tool.

    Attributes:
        calls: How often it was called.
        duration: The time that the calls took together.
    """

    calls: int
    duration: timedelta


@dataclass(frozen=True)
class Statistics:
    """Totals over sessions, of what lifecycle and tracking recorded.

    Attributes:
        sessions: Number of sessions.
        by_status: Number of sessions by `status`; those without one are not in it.
        runs: Runs that were tracked.
        requests: Requests to models.
        input_tokens: Tokens that went into models.
        output_tokens: Tokens that came out of them.
        total_tokens: Both.
        cost: What they cost, in the currency of the prices; of each session twelve decimals.
        run_duration: Time spent in runs.
        duration: Time from start to finish of finished sessions.
        errors: Errors recorded.
        tools: What was recorded of each tool.
        resumed: Number of sessions that were resumed.
        resumed_completed: Number of those that have the status `completed`.
        with_errors: Number of sessions that recorded an error since their last start.
        duration_median: The median of the finished sessions' durations, by nearest rank (of two
            in the middle, the shorter); None if there are none.
        duration_p95: The 95th percentile of these durations, by nearest rank; None if there are
            none.
    """

    sessions: int
    by_status: dict[str, int]
    runs: int
    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: Decimal
    run_duration: timedelta
    duration: timedelta
    errors: int
    tools: dict[str, ToolStatistics]
    resumed: int = 0
    resumed_completed: int = 0
    with_errors: int = 0
    duration_median: timedelta | None = None
    duration_p95: timedelta | None = None

    @property
    def tool_calls(self) -> int:
        """How often tools were called, all together."""
        return sum(tool.calls for tool in self.tools.values())


@dataclass(frozen=True)
class IndexInfo:
    """An index of sessions by activity.

    Attributes:
        key: The metadata key, or `$updated_at`.
        complete: Whether it has all sessions. One that is not is never used; `create_index`
            continues it.
        entries: The number of its entries, if it was asked for.
    """

    key: str
    complete: bool
    entries: int | None = None


@dataclass(frozen=True)
class UsageRow:
    """What runs used, added up from the usage ledger.

    Of `day`, `agent`, `model`, `owner_id` and `session_id` those are set by which the ledger was
    added up; the others are None.

    Attributes:
        day: The day in UTC on which the usage was recorded.
        agent: The agent's name, cut after 255 characters. Calls that an agent used as a tool made
            are counted for the agent that called the tool.
        model: The model's name, cut after 255 characters; None if it is unknown.
        owner_id: What the session had under `owner_id` at that time; None if it had nothing.
        session_id: The session; None if it has ended since.
        requests: Requests to models.
        input_tokens: Tokens that went into models, those from a cache included.
        cached_input_tokens: Those from a cache.
        output_tokens: Tokens that came out of models, those of reasoning included.
        reasoning_tokens: Those of reasoning.
        total_tokens: All tokens, as the SDK counts them.
        cost: What it cost, without the models in `unpriced`; None if no model had a price.
        unpriced: The models that had no price; None stands for unknown ones.
    """

    day: date | None = None
    agent: str | None = None
    model: str | None = None
    owner_id: JSONValue = None
    session_id: str | None = None
    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = 0
    cost: Decimal | None = None
    unpriced: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class SearchHit:
    """A message, or the title of a session, that matches a search query.

    Attributes:
        session_id: The session.
        item_id: The id of the message's row; None for a title.
        created_at: When the message was stored, or the title written; aware, UTC.
        role: `user` or `assistant`; `title` for a title.
        snippet: At most 160 characters of the text, around the first match.
        highlights: Where the matches are in the snippet, as pairs of start and end.
    """

    session_id: str
    item_id: int | None
    created_at: datetime
    role: str
    snippet: str
    highlights: list[tuple[int, int]]


@dataclass(frozen=True)
class SearchPage:
    """A page of hits, newest first.

    Attributes:
        hits: The hits.
        next_cursor: What to pass as `cursor` for the next page; None on the last one.
        complete: Whether everything in the sessions that were asked about is indexed. If not, hits
            may be missing.
    """

    hits: list[SearchHit]
    next_cursor: str | None
    complete: bool
