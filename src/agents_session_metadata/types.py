"""Types that the public methods of sessions and the catalog take and return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from agents.memory import SessionSettings

JSONValue: TypeAlias = "str | int | float | bool | list[JSONValue] | dict[str, JSONValue] | None"
"""What a metadata value may be: str, int, float, bool, None, or lists and dicts of these."""

MAX_KEY_LENGTH = 255
"""Characters that the key column holds."""

MAX_ID_LENGTH = 255
"""Characters of a session id that can have metadata."""

JSONObject: TypeAlias = dict[str, Any]
"""An object as JSON has it, such as a filter, an item, a schema or an answer."""

Metadata: TypeAlias = "dict[str, Any]"
"""The metadata of one session. The values are `JSONValue`s; they are typed as `Any` so that you can
use them without casts."""

OnClear: TypeAlias = Literal["delete", "keep"]
"""What `clear_session()` does: `"delete"` deletes the session with its metadata, `"keep"` deletes
only the messages."""


FeedbackKind: TypeAlias = Literal["positive", "negative"]
"""The vote of a user on an item, as ChatKit names it."""


@dataclass(frozen=True)
class MetadataLimits:
    """Limits for the metadata of one session, such as `MetadataLimits(max_keys=20)`.

    Limits belong to the catalog or session object. The database does not store them.

    Attributes:
        max_keys: The maximum number of keys per session.
        max_key_length: The maximum number of characters per key; at most 255.
        max_value_bytes: The maximum size of a value: the bytes of its compact JSON text in UTF-8,
            with non-ASCII characters unescaped.

    Raises:
        ValueError: If a limit is not a positive integer, or `max_key_length` is over 255.
    """

    max_keys: int = 100
    max_key_length: int = MAX_KEY_LENGTH
    max_value_bytes: int = 65_536

    def __post_init__(self) -> None:
        for name in ("max_keys", "max_key_length", "max_value_bytes"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"{name} must be a positive integer, got {number!r}")
        if self.max_key_length > MAX_KEY_LENGTH:
            raise ValueError(
                f"max_key_length must be at most {MAX_KEY_LENGTH}, got {self.max_key_length}"
            )


class SessionOptions(TypedDict, total=False):
    """Options of the constructors of `SessionCatalog` and `SQLAlchemyMetadataSession`.

    ```python
    options: SessionOptions = {"create_tables": True, "sessions_table": "chats"}
    catalog = SessionCatalog.from_url("sqlite:///chat.db", **options)
    ```

    Attributes:
        create_tables: Whether to create missing tables on first use, once per engine and process;
            False by default.
        sessions_table: Name of the SDK's sessions table; by default `agent_sessions`.
        messages_table: Name of the SDK's messages table; by default `agent_messages`.
        metadata_table: Name of the metadata table; by default the name of the sessions table with
            `_metadata`. The names of further tables begin with it.
        metadata_limits: Limits for the metadata of a session.
        on_clear: With `"delete"`, the default, `clear_session()` deletes the session with its
            metadata. With `"keep"`, it deletes only the messages. Compaction directly around a
            session keeps metadata in both cases. Compaction around a wrapper, as in
            `Compaction(Encrypted(session))`, keeps metadata only with `"keep"`.
        session_settings: As in the SDK's `SQLAlchemySession`.
        ensure_ascii: As in the SDK's `SQLAlchemySession`; True by default.
    """

    create_tables: bool
    sessions_table: str
    messages_table: str
    metadata_table: str | None
    metadata_limits: MetadataLimits | None
    on_clear: OnClear
    session_settings: SessionSettings | dict[str, Any] | None
    ensure_ascii: bool


@dataclass(frozen=True)
class SessionInfo:
    """One session, as a catalog returns it.

    Attributes:
        session_id: The id of the session.
        created_at: When the session was created; aware, UTC.
        updated_at: When the messages last changed; aware, UTC. Writing metadata does not change it.
        metadata: The requested keys that are stored, with their values.
        item_count: The number of items in the history, or None if it was not requested.
        preview: The beginning of the first user message, or None if there is none, if it is
            encrypted, or if it was not requested.
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
        sessions: The sessions, in the requested order.
        next_cursor: The `cursor` of the next page, or None on the last page.
    """

    sessions: list[SessionInfo]
    next_cursor: str | None

    def __iter__(self) -> Iterator[SessionInfo]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)


@dataclass(frozen=True)
class SessionChange:
    """A change that `SessionCatalog.watch` has seen.

    Attributes:
        kind: `"added"`, `"changed"` or `"removed"`.
        session: The session; if it was removed, as it was seen last.
    """

    kind: Literal["added", "changed", "removed"]
    session: SessionInfo


@dataclass(frozen=True)
class ItemInfo:
    """One item of a history.

    Attributes:
        item_id: The id of its row, not the item's own `id`. Ids increase with time, across all
            sessions of a database.
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
        items: The items, in the requested order.
        next_cursor: The `cursor` of the next page, or None on the last page.
        previous_cursor: The `cursor` of the previous page, which has the same order and ends before
            the first item of this one; None on the first page.
    """

    items: list[ItemInfo]
    next_cursor: str | None
    previous_cursor: str | None = None

    def __iter__(self) -> Iterator[ItemInfo]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class ValueCount:
    """A value, and the number of sessions that have it.

    Attributes:
        value: A string, number, boolean or None. Equal numbers are one value; whole numbers are
            returned as int.
        count: The number of sessions.
    """

    value: str | int | float | bool | None
    count: int


@dataclass(frozen=True)
class ToolStatistics:
    """Totals of one tool.

    Attributes:
        calls: The number of calls.
        duration: The total duration of the calls.
    """

    calls: int
    duration: timedelta


@dataclass(frozen=True)
class Statistics:
    """Totals over sessions of the data that lifecycle and tracker recorded.

    Attributes:
        sessions: The number of sessions.
        by_status: The number of sessions per status, as `SessionCatalog.statuses` returns it.
            Sessions without one are left out.
        runs: The number of tracked runs.
        requests: The number of requests to models.
        input_tokens: The number of input tokens.
        output_tokens: The number of output tokens.
        total_tokens: The number of input and output tokens.
        cost: The cost, in the currency of the prices. The cost of each session has twelve decimals.
        run_duration: The total duration of runs.
        duration: The total time from start to finish of finished sessions.
        errors: The number of recorded errors.
        tools: The totals per tool.
        resumed: Number of sessions that were resumed.
        resumed_completed: Number of those that have the status `completed`.
        with_errors: Number of sessions that recorded an error since their last start.
        duration_median: The median of the finished sessions' durations, by nearest rank (of two
            in the middle, the shorter); None if there are none.
        duration_p95: The 95th percentile of these durations, by nearest rank; None if there are
            none.
        feedback: The number of items per kind of their newest vote.
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
    feedback: dict[str, int] = field(default_factory=dict)

    @property
    def tool_calls(self) -> int:
        """The number of tool calls."""
        return sum(tool.calls for tool in self.tools.values())


@dataclass(frozen=True)
class DayStatistics:
    """Totals of the sessions that were created on one day, or on all days of a range.

    Attributes:
        day: The day in UTC; None for all days.
        sessions: The number of sessions.
        by_status: As in `Statistics`, most frequent first, like `by_agent` and `tools`.
        by_agent: The number of sessions per `agent`. Sessions without one are left out.
        runs: The number of tracked runs.
        tools: The totals per tool.
        duration_median: As in `Statistics`, or of the runs of a session without a lifecycle.
        duration_p95: Likewise.
    """

    day: date | None = None
    sessions: int = 0
    by_status: dict[str, int] = field(default_factory=dict)
    by_agent: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    tools: dict[str, ToolStatistics] = field(default_factory=dict)
    duration_median: timedelta | None = None
    duration_p95: timedelta | None = None


@dataclass(frozen=True)
class DailyStatistics:
    """The result of `SessionCatalog.daily_statistics`.

    Attributes:
        days: The days on which sessions were created, oldest first.
        total: The totals of these days.
        complete: Whether all sessions were counted. If not, only the newest `limit` were.
        feedback: As in `Statistics`; empty if not all sessions were counted.
    """

    days: list[DayStatistics]
    total: DayStatistics
    complete: bool
    feedback: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Erasure:
    """The receipt of `SessionCatalog.erase`.

    Attributes:
        sessions: The number of sessions that were erased.
        rows: The number of rows that were deleted or made anonymous, by table. It includes tables
            in which there were none.
        at: The time at which everything was looked through once more; aware, UTC.
        complete: Whether nothing was found then. If not, others have written in the meantime.
    """

    sessions: int
    rows: dict[str, int]
    at: datetime
    complete: bool

    def to_dict(self) -> dict[str, Any]:
        """The receipt as JSON."""
        return {**asdict(self), "at": self.at.isoformat()}


@dataclass(frozen=True)
class TableSize:
    """The size of a table.

    Attributes:
        table: The name of the table.
        rows: The number of rows, counted.
        bytes: The size with indexes in bytes; None if the database does not report it. MariaDB and
            MySQL estimate it, and MySQL updates the estimate once a day.
    """

    table: str
    rows: int
    bytes: int | None


@dataclass(frozen=True)
class Feedback:
    """The newest vote of a user on an item of a thread.

    Attributes:
        item_id: The id of the item.
        kind: `"positive"` or `"negative"`.
        at: When the user voted; aware, UTC.
    """

    item_id: str
    kind: FeedbackKind
    at: datetime


@dataclass(frozen=True)
class IndexInfo:
    """An index.

    Attributes:
        key: `$updated_at` or `$text`; if the index is obsolete, a metadata key.
        complete: Whether the index covers everything that was stored when it was created. If not,
            `create_index` continues it.
        entries: The number of entries, or None if it was not requested.
        obsolete: Whether version 0.2.0 created the index. Nothing uses it: remove it with
            `drop_index`.
    """

    key: str
    complete: bool
    entries: int | None = None
    obsolete: bool = False


@dataclass(frozen=True)
class SearchHit:
    """A message, or the title of a session, that matches a search query.

    Attributes:
        session_id: The session.
        item_id: The id of the message's row; None for a title.
        created_at: When the message was stored; for a title, when the newest message of its session
            was stored, or if there is none, when the session was last active. Aware, UTC.
        role: `user` or `assistant`; `title` for a title.
        snippet: At most 160 characters of the text, around the first match.
        highlights: The start and end of each match in the snippet.
        item: The stored message; None for a title.
    """

    session_id: str
    item_id: int | None
    created_at: datetime
    role: str
    snippet: str
    highlights: list[tuple[int, int]]
    item: dict[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SearchPage:
    """A page of hits, newest first.

    Attributes:
        hits: The hits.
        next_cursor: The `cursor` of the next page, or None on the last page.
        complete: False if messages of other writers were left out because there are too many that
            have not been indexed. Search again, or call `refresh_index`.
    """

    hits: list[SearchHit]
    next_cursor: str | None
    complete: bool

    def __iter__(self) -> Iterator[SearchHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


USAGE_FIELDS = ("day", "agent", "model", "owner_id", "session_id", "item_id")
"""The fields that `SessionCatalog.usage(by=…)` can group by."""


@dataclass(frozen=True)
class UsageRow:
    """Usage of runs, added up from the usage ledger.

    Only the fields that `by` names are set: of `day`, `agent`, `model`, `owner_id`, `session_id`
    and `item_id`, the others are None.

    Attributes:
        day: The day in UTC on which the usage was recorded.
        agent: The agent's name, truncated to 255 characters. Calls of an agent that is used as a
            tool are counted for the agent that called the tool.
        model: The model's name, truncated to 255 characters; None if it is unknown.
        owner_id: The `owner_id` of the session at that time; None if it had none.
        session_id: The id of the session; None if the session was deleted.
        item_id: The newest item of the session when the usage was recorded; None if there was none.
            It is in the turn that the usage belongs to.
        requests: The number of requests to models.
        input_tokens: The number of input tokens, including cached ones.
        cached_input_tokens: The number of cached input tokens.
        output_tokens: The number of output tokens, including reasoning tokens.
        reasoning_tokens: The number of reasoning tokens.
        total_tokens: The number of all tokens, as the SDK counts them.
        cost: The cost without the models in `unpriced`; None if no model had a price.
        unpriced: The models without a price; None stands for unknown models.
    """

    day: date | None = None
    agent: str | None = None
    model: str | None = None
    owner_id: JSONValue = None
    session_id: str | None = None
    item_id: int | None = None
    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = 0
    cost: Decimal | None = None
    unpriced: tuple[str | None, ...] = ()
