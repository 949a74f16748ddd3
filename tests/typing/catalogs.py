"""What type checkers see of `SessionCatalog`. Checked by mypy and pyright, never run."""

# Each ignored error must be there: mypy warns of a needless ignore by itself, pyright is told to.
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import MetaData, Table
from sqlalchemy.ext.asyncio import AsyncEngine
from typing_extensions import assert_type

from agents_session_metadata import (
    FILTER_OPERATORS,
    BudgetExceededError,
    CorruptMetadataError,
    CreateTrigger,
    DailyStatistics,
    DayStatistics,
    Erasure,
    Feedback,
    FeedbackKind,
    IndexInfo,
    ItemExistsError,
    ItemInfo,
    ItemNotFoundError,
    ItemPage,
    JSONValue,
    Metadata,
    MetadataLimits,
    OnClear,
    OnConflict,
    OnCorrupt,
    OrderBy,
    RunFailedError,
    SearchHit,
    SearchPage,
    SessionCatalog,
    SessionChange,
    SessionChangedError,
    SessionInfo,
    SessionPage,
    SessionPausedError,
    SessionTables,
    SQLAlchemyMetadataSession,
    StateVersionError,
    Statistics,
    TableGroup,
    TableSize,
    ToolStatistics,
    UsageRow,
    ValueCount,
    Where,
    check_filter,
    filter_hint,
    is_unavailable,
    session_tables,
)


class Subclass(SessionCatalog):
    """An application's own catalog."""


async def construction(engine: AsyncEngine) -> None:
    """An engine or a URL, and keywords; a subclass stays what it is."""
    catalog = SessionCatalog(
        engine,
        create_tables=True,
        sessions_table="sessions",
        messages_table="messages",
        metadata_table="facts",
        metadata_limits=MetadataLimits(max_value_bytes=1024),
        on_clear="keep",
        session_settings={"limit": 10},
        ensure_ascii=False,
    )
    assert_type(catalog.engine, AsyncEngine)
    assert_type(catalog.scoped({"owner_id": "u1"}), SessionCatalog)
    async with Subclass.from_url("sqlite+aiosqlite://", engine_kwargs={"echo": True}) as opened:
        assert_type(opened, Subclass)
        assert_type(opened.scoped({"owner_id": "u1"}), Subclass)
    SessionCatalog(engine, True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def single_sessions(catalog: SessionCatalog) -> None:
    """Reading may find nothing, making and opening gives a session."""
    assert_type(catalog.session("chat-1"), SQLAlchemyMetadataSession)
    assert_type(await catalog.create_session(), SQLAlchemyMetadataSession)
    made = await catalog.create_session("chat-1", metadata={"owner_id": "u1"})
    assert_type(made, SQLAlchemyMetadataSession)
    found = await catalog.get_or_create_session({"repo": "o/r", "pr": 42}, metadata={"size": 1})
    assert_type(found, tuple[SQLAlchemyMetadataSession, bool])
    assert_type(await catalog.get_session("chat-1", keys=["title"]), SessionInfo | None)
    assert_type(await catalog.last_session({"agent": "analyst"}), SessionInfo | None)
    assert_type(await catalog.delete_session("chat-1"), bool)
    assert_type(await catalog.fork_session("chat-1"), SQLAlchemyMetadataSession)

    assert_type(await catalog.fork_session("chat-1", before=17), SQLAlchemyMetadataSession)

    (await catalog.get_session("chat-1")).metadata  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]  # noqa: B018
    catalog.session(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def metadata_by_id(catalog: SessionCatalog) -> None:
    """The same verbs as on a session."""
    assert_type(await catalog.get_metadata("chat-1", ["title"]), dict[str, Any])
    await catalog.set_metadata("chat-1", {"title": "My chat"})
    changed = await catalog.edit_metadata("chat-1", lambda stored: stored.clear())
    assert_type(changed, dict[str, Any])
    assert_type(await catalog.delete_metadata("chat-1"), int)


async def many_sessions(catalog: SessionCatalog) -> None:
    """Pages, walks and counts."""
    page = await catalog.list_sessions({"size": {"$gte": 1}}, order_by="-created_at", limit=20)
    assert_type(page, SessionPage)
    assert_type(page.sessions, list[SessionInfo])
    assert_type(page.next_cursor, str | None)
    await catalog.list_sessions(cursor=page.next_cursor, keys=["title"], count_items=True)
    assert_type(catalog.iter_sessions(), AsyncIterator[SessionInfo])
    async for info in catalog.iter_sessions({"$updated_at": {"$lt": datetime.now(timezone.utc)}}):
        assert_type(info, SessionInfo)
    assert_type(await catalog.last_sessions("agent", limit=5), list[SessionInfo])
    async for change in catalog.watch({"owner_id": "u1"}, interval=1, initial=True):
        assert_type(change, SessionChange)
        assert_type(change.kind, Literal["added", "changed", "removed"])
    assert_type(await catalog.count_sessions(), int)
    assert_type(await catalog.count_values("tags", {"owner_id": "u1"}, limit=5), list[ValueCount])
    assert_type(await catalog.statistics(), Statistics)
    assert_type(await catalog.statuses(await catalog.list_sessions()), dict[str, str])
    await catalog.list_sessions(await catalog.status_filter("failed"))
    daily = await catalog.daily_statistics(since=date(2026, 3, 1), until=datetime.now(timezone.utc))
    assert_type(daily, DailyStatistics)
    assert_type(daily.days, list[DayStatistics])
    assert_type(daily.total.duration_p95, timedelta | None)
    for vote in await catalog.feedback("chat-1"):
        assert_type(vote, Feedback)
        kind: FeedbackKind = vote.kind
        assert_type(kind, Literal["positive", "negative"])

    errors: list[CorruptMetadataError] = []
    await catalog.list_sessions(order_by="-title", on_corrupt=errors.append)
    await catalog.list_sessions(order_by=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await catalog.list_sessions(owner_id="u1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await catalog.list_sessions([("owner_id", "u1")])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def indexes(catalog: SessionCatalog) -> None:
    """Indexes, and what is known of them."""
    assert_type(await catalog.create_index("$updated_at", progress=print), bool)
    assert_type(await catalog.list_indexes(count=True), list[IndexInfo])
    assert_type(await catalog.storage(), list[TableSize])
    assert_type(await catalog.drop_index("owner_id"), bool)


async def ageing_and_moving(catalog: SessionCatalog) -> None:
    """What is exported can be imported, from any kind of iterable."""
    month = timedelta(days=30)
    assert_type(await catalog.delete_sessions(inactive_for=month, progress=print), int)
    assert_type(await catalog.delete_sessions({"status": "failed"}, dry_run=True), int)
    records = catalog.export_sessions({"owner_id": "u1"})
    assert_type(records, AsyncIterator[dict[str, Any]])
    assert_type(await catalog.import_sessions(records, on_conflict="skip"), int)
    kept = [record async for record in catalog.export_sessions()]
    assert_type(kept, list[dict[str, Any]])
    await catalog.import_sessions(kept, "replace")

    await catalog.delete_sessions(inactive_for=30)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await catalog.import_sessions(kept, "merge")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def aliases(engine: AsyncEngine, on_corrupt: OnCorrupt) -> None:
    """The types of arguments have names, for an application's own functions."""
    where: Where = {"size": {"$gte": 1}}
    order_by: OrderBy = "-pinned"
    on_clear: OnClear = "keep"
    on_conflict: OnConflict = "skip"
    value: JSONValue = {"a": [1, None, "b"]}
    catalog = SessionCatalog(engine, on_clear=on_clear)
    await catalog.list_sessions(where, order_by=order_by, on_corrupt=on_corrupt)
    await catalog.import_sessions([], on_conflict)
    await catalog.create_session(metadata={"value": value})
    stored: Metadata = await catalog.get_metadata("chat-1")
    assert_type(stored, dict[str, Any])

    on_clear = "drop"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


def results(info: SessionInfo, count: ValueCount, totals: Statistics) -> None:
    """The fields of what comes back; it cannot be changed."""
    assert_type(info.session_id, str)
    assert_type(info.created_at, datetime)
    assert_type(info.updated_at, datetime)
    assert_type(info.metadata, dict[str, Any])
    assert_type(info.item_count, int | None)
    assert_type(count.value, str | int | float | bool | None)
    assert_type(count.count, int)
    assert_type(totals.by_status, dict[str, int])
    assert_type(totals.cost, Decimal)
    assert_type(totals.run_duration, timedelta)
    assert_type(totals.tools, dict[str, ToolStatistics])
    assert_type(totals.tool_calls, int)
    assert_type(totals.tools["search"].duration, timedelta)

    info.item_count = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def usage(catalog: SessionCatalog) -> None:
    """What runs used."""
    rows = await catalog.usage(owner_id="u1", by=("day", "agent"), since=date(2025, 1, 1))
    assert_type(rows, list[UsageRow])
    assert_type(rows[0].cost, Decimal | None)
    assert_type(rows[0].unpriced, tuple[str | None, ...])
    assert_type(await catalog.delete_usage(before=datetime.now(timezone.utc)), int)

    await catalog.usage(since="2025-01-01")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def tables() -> None:
    """For Alembic's `target_metadata`."""
    found = session_tables(MetaData(), sessions_table="sessions")
    assert_type(found, SessionTables)
    assert_type(found.tables, tuple[Table, Table, Table, Table])
    assert_type(found.groups, tuple[TableGroup, ...])
    assert_type(found.triggers, tuple[CreateTrigger, ...])
    assert_type(found.triggers[0].name, str)
    assert_type(found.metadata, Table)


async def histories(catalog: SessionCatalog, session: SQLAlchemyMetadataSession) -> None:
    """Items by page; what was removed comes back."""
    page = await catalog.list_items("chat-1", newest_first=True, limit=10, cursor=None)
    assert_type(page, ItemPage)
    assert_type(page.items, list[ItemInfo])
    assert_type(page.next_cursor, str | None)
    assert_type(page.items[0].item, dict[str, Any])
    found = await catalog.search("word", {"a": 1}, limit=5, cursor=None, by_session=True)
    assert_type(found, SearchPage)
    assert_type(found.hits, list[SearchHit])
    assert_type(found.hits[0].highlights, list[tuple[int, int]])
    assert_type(await catalog.create_index("$text", native=True), bool)
    assert_type(await catalog.refresh_index("$text"), int)
    assert_type(await session.rewind(turns=1), list[ItemInfo])
    assert_type(await catalog.rewind_session("chat-1", before=1, expect_last=2), list[ItemInfo])
    assert_type((await catalog.list_sessions(preview=True)).sessions[0].preview, str | None)
    await catalog.list_items("chat-1", newest_first="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def searching(catalog: SessionCatalog) -> None:
    """Search always raises in this version."""
    await catalog.search("lisbon", {"owner_id": "u1"}, limit=5, cursor=None)


def errors(
    changed: SessionChangedError,
    paused: SessionPausedError,
    failed: RunFailedError,
    version: StateVersionError,
    budget: BudgetExceededError,
) -> None:
    """Errors say what was wrong."""
    assert_type([changed.session_id, paused.session_id, failed.session_id], list[str])
    assert_type(failed.error, str)
    assert_type(version.version, object)
    assert_type(budget.limit, str)
    raise budget


async def a_door(catalog: SessionCatalog, session: SQLAlchemyMetadataSession) -> None:
    message = {"role": "user", "content": "Hello"}
    await catalog.create_session("chat", metadata={"title": "Lisbon"}, items=[message])
    items = await session.get_items()
    assert_type(await catalog.add_items("chat", items, key="k", unique_ids=True), list[ItemInfo])
    assert_type(await catalog.get_item("chat", 1), ItemInfo)
    assert_type(await catalog.get_item("chat", "msg_1"), ItemInfo)
    await catalog.get_item("chat", 1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await catalog.delete_item("chat", "msg_1"), None)
    page = await catalog.list_items("chat", around="msg_1", max_bytes=1_000)
    assert_type(page.previous_cursor, str | None)
    await catalog.list_items("chat", after=1, newest_first=True)
    await catalog.set_metadata("chat", {"a": 1}, remove=["b"], must_exist=True)
    await session.set_metadata({"a": 1}, remove={"b"})
    assert_type(catalog.scope, dict[str, Any])
    hit = (await catalog.search("tram")).hits[0]
    assert_type(hit.item, dict[str, Any] | None)
    assert_type(FILTER_OPERATORS, tuple[str, ...])
    check_filter({"size": {"$gte": 1}})
    assert_type(filter_hint({"tags": {"contains": "x"}}), str | None)
    exists, missing = ItemExistsError("chat", "msg_1"), ItemNotFoundError("chat", 1)
    assert_type((exists.item_id, missing.item_id), tuple[str, int | str])
    assert_type(is_unavailable(missing), bool)


async def rights(catalog: SessionCatalog) -> None:
    visible = catalog.readable({"members": {"$contains": "u2"}})
    assert_type(visible, SessionCatalog)
    assert_type(visible.read_only, bool)
    receipt = await catalog.scoped({"owner_id": "u1"}).erase(usage="anonymize", by="ana")
    assert_type(receipt, Erasure)
    assert_type((receipt.rows, receipt.complete), tuple[dict[str, int], bool])
    assert_type(receipt.to_dict(), dict[str, Any])
    await catalog.erase({"a": 1}, usage="keep")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
