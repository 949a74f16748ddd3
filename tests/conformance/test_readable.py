"""A readable catalog: every read is restricted to its filter, and nothing can be written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from datetime import date, datetime, timezone
from typing import Any

import httpx2
import pytest
from agents.extensions.memory import SQLAlchemySession
from mcp import Client
from scaling import scale

from agents_session_metadata import (
    InvalidFilterError,
    ScopeError,
    SessionCatalog,
    SessionRuns,
    SQLAlchemyMetadataSession,
)
from agents_session_metadata.chatkit import CatalogStore
from agents_session_metadata.http import sessions_app
from agents_session_metadata.http.events import Streams
from agents_session_metadata.mcp import READ_TOOLS, WRITE_TOOLS, make_server
from agents_session_metadata.web import browser_app
from conformance import raw
from conformance.approving import Deployer
from conformance.persons import all_rows, rows_with, use_everything
from conformance.test_tenants import CALLS, Call, User

TODAY = datetime.now(timezone.utc).date()
MEMBER = {"$or": [{"owner_id": "clara"}, {"members": {"$contains": "clara"}}]}


@pytest.fixture
async def shared(catalog):
    """What Anna shares with Clara; Bruno's sessions are alike and not shared."""
    await catalog.create_index("$text")
    await use_everything(catalog, "anna", members=["clara"])
    await use_everything(catalog, "bruno", members=["dora"])
    return catalog.readable(MEMBER)


async def test_every_read_is_restricted_to_the_filter_also_by_id(shared, catalog):
    theirs = ["anna-chat", "anna-decided", "anna-thread", "anna-tracked", "anna-waiting"]
    found = [info.session_id async for info in shared.iter_sessions()]
    # A run creates its session without members.
    assert found == [each for each in theirs if await shared.get_session(each)] == theirs
    assert {each.session_id for each in await shared.list_sessions(limit=100)} == set(theirs)
    assert await shared.count_sessions() == (await shared.statistics()).sessions == len(theirs)
    assert [each.value for each in await shared.count_values("owner_id")] == ["anna"]
    assert await shared.search("anna")
    assert not (await shared.search("bruno")).hits
    assert [row.owner_id for row in await shared.usage(by=("owner_id",))] == ["anna"]
    # Only of sessions that exist.
    assert [row.session_id for row in await shared.usage(by=("session_id",))] == ["anna-tracked"]
    runs = SessionRuns(shared)
    assert {run.session_id for run in await runs.list()} == {"anna-chat", "anna-waiting"}
    decided = {each.session_id for each in await runs.decisions()}
    assert decided == {"anna-waiting", "anna-decided"}
    [record] = [each async for each in shared.export_sessions({"$session_id": "anna-chat"})]
    assert record["metadata"]["owner_id"] == "anna"
    assert [vote.kind for vote in await shared.feedback("anna-thread")] == ["positive"]
    threads = CatalogStore(shared, scope=None)
    assert (await threads.load_attachment("anna-sent", None)).thread_id == "anna-thread"
    for name in ("anna-unsent", "bruno-sent", "bruno-unsent"):
        with pytest.raises(Exception, match="not found"):
            await threads.load_attachment(name, None)
    changes = shared.watch(initial=True, interval=0.01)
    seen = [(await anext(changes)).session.session_id for _ in theirs]
    await changes.aclose()
    assert sorted(seen) == theirs
    # Access ends with the filter.
    await catalog.set_metadata("anna-chat", {"members": []})
    assert await shared.get_session("anna-chat") is None
    assert await shared.session("anna-chat").get_items() == []


async def test_a_filter_that_holds_for_a_missing_key_shows_no_row_of_a_deleted_session(catalog):
    await use_everything(catalog, "anna", members=[])
    others = catalog.readable({"owner_id": {"$ne": "bruno"}})
    assert {row.session_id for row in await others.usage(by=("session_id",))} == {"anna-tracked"}
    assert None not in {each.session_id for each in await SessionRuns(others).decisions()}
    assert await others.get_metadata("nobody") == {}
    assert (await others.list_items("nobody")).items == []


@pytest.mark.logic
async def test_readable_can_be_restricted_further_and_never_widened(shared, catalog):
    both = shared.scoped({"owner_id": "anna"}).readable({"status": "waiting"})
    assert [each.session_id for each in await both.list_sessions()] == []
    mine = catalog.scoped({"owner_id": "bruno"})
    assert await mine.readable(MEMBER).count_sessions() == 0
    assert await mine.readable({}).count_sessions() == await mine.count_sessions() > 0
    assert mine.readable({}).read_only
    assert not mine.read_only
    assert await shared.scoped({"owner_id": "bruno"}).count_sessions() == 0
    with pytest.raises(ScopeError):
        mine.readable(MEMBER).scoped({"owner_id": "anna"})
    # Rows of the ledger, by owner and by session.
    own = catalog.scoped({"owner_id": "anna"}).readable({"title": {"$exists": True}})
    assert [row.session_id for row in await own.usage(by=("session_id",))] == ["anna-tracked"]


@pytest.mark.logic
async def test_writing_the_scope_of_a_readable_catalog_names_no_key(catalog):
    await catalog.create_session("chat", metadata={"owner_id": "anna"})
    anna, where = {"owner_id": "anna"}, {"title": {"$ne": "x"}}
    bruno = {"owner_id": "bruno"}
    for both in (catalog.scoped(anna).readable(where), catalog.readable(where).scoped(anna)):
        chat = both.session("chat")
        for call in (
            lambda both=both: both.set_metadata("chat", bruno),
            lambda both=both: both.delete_metadata("chat", ["owner_id"]),
            lambda both=both: both.create_session("new", metadata=bruno),
            lambda both=both: both.fork_session("chat", metadata=bruno),
            lambda both=both: both.create_index("$text"),
            lambda chat=chat: chat.set_metadata(bruno),
        ):
            with pytest.raises(ScopeError) as caught:
                await call()
            assert caught.value.key is None


@pytest.mark.logic
def test_readable_needs_a_filter_with_a_condition(catalog):
    for where in ({}, {"$and": [{}]}):
        with pytest.raises(ValueError, match="needs a filter with a condition"):
            catalog.readable(where)
    with pytest.raises(InvalidFilterError):
        catalog.readable({"owner_id": {"$is": 1}})


@pytest.mark.logic
def test_the_scope_of_a_readable_catalog_is_a_filter_as_json(catalog):
    moment = datetime(2026, 1, 2, tzinfo=timezone.utc)
    where = {"$created_at": {"$gte": moment}, "tags": {"$all": ["a"]}}
    scope = catalog.readable(where).scope
    assert json.loads(json.dumps(scope)) == scope
    assert scope == {"$created_at": {"$gte": moment.isoformat()}, "tags": {"$all": ["a"]}}
    nested = catalog.scoped({"owner_id": "anna"}).readable(MEMBER).readable(where).scope
    assert nested == {"$and": [{"owner_id": "anna"}, MEMBER, scope]}
    assert catalog.readable(nested).scope == nested
    assert "read-only" in repr(catalog.readable(where))


@pytest.mark.logic
async def test_a_cursor_belongs_to_the_filter(shared, catalog):
    cursor = (await shared.list_sessions(limit=1)).next_cursor
    other = catalog.readable({"owner_id": "bruno"})
    with pytest.raises(ValueError, match="cursor"):
        await other.list_sessions(limit=1, cursor=cursor)


# ---- every public method ----

Try = Callable[[Any, str], Any]


async def _first(iterator: Any) -> Any:
    return [each async for each in iterator]


async def _change(catalog: SessionCatalog, name: str) -> Any:
    changes = catalog.watch({"$session_id": name}, interval=0.01, initial=True)
    with contextlib.suppress(asyncio.TimeoutError):
        return (await asyncio.wait_for(anext(changes), 0.05)).session.metadata
    return None


async def _statuses(catalog: SessionCatalog, name: str) -> Any:
    return await catalog.statuses(await catalog.list_sessions({"$session_id": name}))


async def _with_status(catalog: SessionCatalog, name: str) -> Any:
    waits = await catalog.status_filter("waiting")
    return await catalog.list_sessions({"$and": [{"$session_id": name}, waits]})


CATALOG_READS: dict[str, Try] = {
    "count_sessions": lambda c, name: c.count_sessions({"$session_id": name}),
    "count_values": lambda c, name: c.count_values("title", {"$session_id": name}),
    "daily_statistics": lambda c, name: c.daily_statistics({"$session_id": name}, since=TODAY),
    "export_sessions": lambda c, name: _first(c.export_sessions({"$session_id": name})),
    "feedback": lambda c, name: c.feedback(name),
    "get_item": lambda c, name: c.get_item(name, 1),
    "get_metadata": lambda c, name: c.get_metadata(name),
    "get_session": lambda c, name: c.get_session(name, count_items=True, preview=True),
    "iter_sessions": lambda c, name: _first(c.iter_sessions({"$session_id": name})),
    "last_session": lambda c, name: c.last_session({"$session_id": name}),
    "last_sessions": lambda c, name: c.last_sessions("title", {"$session_id": name}),
    "list_items": lambda c, name: c.list_items(name),
    "list_sessions": lambda c, name: c.list_sessions({"$session_id": name}),
    "search": lambda c, name: c.search(name.split("-")[0], {"$session_id": name}),
    "statistics": lambda c, name: c.statistics({"$session_id": name}),
    "status_filter": _with_status,
    "statuses": _statuses,
    "usage": lambda c, name: c.usage(session_id=name),
    "watch": _change,
}
CATALOG_WRITES: dict[str, Try] = {
    "add_items": lambda c, name: c.add_items(name, [raw.message("a")], key="k"),
    "create_session": lambda c, name: c.create_session(name),
    "delete_item": lambda c, name: c.delete_item(name, 1),
    "delete_metadata": lambda c, name: c.delete_metadata(name),
    "delete_session": lambda c, name: c.delete_session(name),
    "delete_sessions": lambda c, name: c.delete_sessions({"$session_id": name}),
    "delete_usage": lambda c, _: c.delete_usage(before=date(2100, 1, 1)),
    "edit_metadata": lambda c, name: c.edit_metadata(name, lambda m: m.update(a=1)),
    "erase": lambda c, name: c.erase({"$session_id": name}),
    "fork_session": lambda c, name: c.fork_session(name),
    "get_or_create_session": lambda c, name: c.get_or_create_session({"new": name}),
    "import_sessions": lambda c, name: c.import_sessions([_record(name)], "replace"),
    "rewind_session": lambda c, name: c.rewind_session(name, turns=1),
    "set_metadata": lambda c, name: c.set_metadata(name, {"a": 1}),
}
CATALOG_ALL_SESSIONS: dict[str, Try] = {
    "create_index": lambda c, _: c.create_index("$text"),
    "drop_index": lambda c, _: c.drop_index("$text"),
    "list_indexes": lambda c, _: c.list_indexes(),
    "refresh_index": lambda c, _: c.refresh_index("$text"),
    "storage": lambda c, _: c.storage(),
}
NO_SESSIONS = {"engine", "from_url", "readable", "read_only", "scope", "scoped", "session"}

SESSION_READS: dict[str, Try] = {
    "find_sessions_by_metadata": lambda s, n: s.find_sessions_by_metadata({"$session_id": n}),
    "get_items": lambda s, _: s.get_items(),
    "get_metadata": lambda s, _: s.get_metadata(),
}
SESSION_WRITES: dict[str, Try] = {
    "add_items": lambda s, _: s.add_items([raw.message("a")]),
    "clear_session": lambda s, _: s.clear_session(),
    "delete_metadata": lambda s, _: s.delete_metadata(),
    "edit_metadata": lambda s, _: s.edit_metadata(lambda m: m.update(a=1)),
    "pop_item": lambda s, _: s.pop_item(),
    "rewind": lambda s, _: s.rewind(turns=1),
    "set_metadata": lambda s, _: s.set_metadata({"a": 1}),
}
RUN_READS: dict[str, Try] = {
    "decisions": lambda r, name: r.decisions(name),
    "get": lambda r, name: r.get(name),
    "list": lambda r, name: r.list(None, {"$session_id": name}),
    "follow": lambda r, name: _first(r.follow(name)),
}
RUN_WRITES: dict[str, Try] = {
    "cancel": lambda r, name: r.cancel(name),
    "decide": lambda r, name: r.decide(name, f"{name.split('-')[0]}-call", approve=True),
    "delete_decisions": lambda r, _: r.delete_decisions(before=datetime.now(timezone.utc)),
    "discard": lambda r, name: r.discard(name, force=True),
    "recover": lambda r, _: r.recover(lambda info: None),
    "recovering": lambda r, _: r.recovering(lambda info: None).__aenter__(),
    "resume": lambda r, name: r.resume(name, Deployer().agent("done")),
    "run": lambda r, name: r.run(name, Deployer().agent("done"), "hello"),
    "start": lambda r, name: r.start(name, Deployer().agent("done"), "hello"),
    "stream": lambda r, name: r.stream(name, Deployer().agent("done"), "hello").__aenter__(),
    "stream_resume": lambda r, name: r.stream_resume(name, Deployer().agent("x")).__aenter__(),
}


def _record(name: str) -> dict[str, Any]:
    times = dict.fromkeys(("created_at", "updated_at"), "2024-01-01T00:00:00+00:00")
    return {"format": 1, "session_id": name, "items": [], "metadata": {}, **times}


def _public(kind: type) -> set[str]:
    own = [each for each in kind.__mro__ if each.__module__.startswith("agents_session_metadata")]
    return {name for each in own for name in vars(each) if not name.startswith("_")}


def test_every_public_method_is_tried():
    tried = {*CATALOG_READS, *CATALOG_WRITES, *CATALOG_ALL_SESSIONS}
    assert _public(SessionCatalog) == tried | NO_SESSIONS
    session = {*SESSION_READS, *SESSION_WRITES}
    assert _public(SQLAlchemyMetadataSession) == session | {"catalog", "from_url"}
    assert _public(SessionRuns) == {*RUN_READS, *RUN_WRITES, "aclose", "with_catalog"}


async def _outcome(call: Awaitable[Any], name: str) -> str:
    try:
        answer = repr(await call)
    except Exception as error:  # noqa: BLE001  # whatever it is
        answer = f"{type(error).__name__}: {error}"
    return answer.replace(name, "<id>")


async def test_no_public_method_writes_or_shows_what_is_outside(shared):
    before = await all_rows(shared.engine)
    for name in ("anna-waiting", "bruno-waiting", "bruno-thread", "nobody"):
        session, runs = shared.session(name), SessionRuns(shared)
        existing = shared.session(name, must_exist=True)
        for target, tries in (
            (shared, CATALOG_WRITES),
            (session, SESSION_WRITES),
            (existing, SESSION_WRITES),
            (runs, RUN_WRITES),
            (shared, CATALOG_ALL_SESSIONS),
        ):
            for method, attempt in tries.items():
                with pytest.raises(ScopeError) as caught:
                    await attempt(target, name)
                assert caught.value.key is None, method
    for names in (("bruno-waiting", "nobody-waiting"), ("bruno-thread", "nobody-thread")):
        for reads, target in (
            (CATALOG_READS, lambda _: shared),
            (SESSION_READS, shared.session),
            (RUN_READS, lambda _: SessionRuns(shared)),
        ):
            for method, attempt in reads.items():
                outside, missing = [await _outcome(attempt(target(n), n), n) for n in names]
                assert outside == missing, method
    assert await all_rows(shared.engine) == before


async def test_every_read_shows_what_is_shared(shared):
    names = ["nobody", "anna-chat", "anna-thread", "anna-tracked", "anna-waiting"]
    for reads, target in (
        (CATALOG_READS, lambda _: shared),
        (SESSION_READS, shared.session),
        (RUN_READS, lambda _: SessionRuns(shared)),
    ):
        for method, attempt in reads.items():
            found = [await _outcome(attempt(target(name), name), name) for name in names]
            assert set(found) != {found[0]}, method


@pytest.mark.logic
async def test_a_write_is_refused_before_its_missing_tables(engine):
    everyone = SessionCatalog(engine, create_tables=True)
    await everyone.create_session("chat", metadata={"owner_id": "anna"})
    catalog = SessionCatalog(engine).readable({"owner_id": "anna"})
    for call in (
        catalog.add_items("chat", [raw.message("a")], key="k"),
        SessionRuns(catalog).run("chat", Deployer().agent("done"), "hello"),
        catalog.delete_usage(before=TODAY),
    ):
        with pytest.raises(ScopeError):
            await call
    assert not {name for name in await all_rows(engine) if name.endswith(("_runs", "_usage"))}


async def test_search_adds_rows_of_other_writers_to_the_index(shared, engine):
    plain = SQLAlchemySession("anna-chat", engine=engine)
    await plain.add_items([raw.message("castle")])
    [hit] = await shared.search("castle")
    assert hit.session_id == "anna-chat"
    assert rows_with({"text": (await all_rows(engine))["agent_sessions_metadata_text"]}, "castle")


# ---- doors ----

LIBRARY_IDS = ("c1", "c2", "o1", "o2")


class Reader(User):
    """Makes the calls of a tenant on what is readable."""

    def __init__(self, catalog: SessionCatalog) -> None:
        visible = catalog.readable({"members": {"$contains": "clara"}})
        threads = CatalogStore(catalog, scope=lambda _: visible)
        super().__init__(threads, catalog, "clara", ["c1", "new"], [*LIBRARY_IDS, "nobody"])
        self._catalog = visible


async def _fill(catalog: SessionCatalog, prefix: str, members: list[str]) -> None:
    for number in (1, 2):
        name = f"{prefix}{number}"
        metadata = {
            "owner_id": "theirs",
            "members": members,
            "tags": ["Lisbon", "all"],
            "n": number,
        }
        metadata |= {"title": f"{prefix} tram 28"}
        session = await catalog.create_session(name, metadata=metadata)
        await session.add_items([raw.message(f"Lisbon castle {prefix}")])
        threads = CatalogStore(catalog, scope=None)
        call = Call(catalog, threads, "theirs", name, name, random.Random(name))
        await threads.save_thread(call.thread(f"{name}-t"), None)
        await catalog.set_metadata(f"{name}-t", {"members": members})
        await threads.add_thread_item(name, call.item(), None)
        await call.pause() if number == 2 else None


async def _two(engine: Any) -> tuple[SessionCatalog, SessionCatalog]:
    """The same shared sessions alone, and beside others. Ids of rows and times are the same."""
    catalogs = []
    for name in ("alone", "both"):
        tables = {"sessions_table": f"{name}_sessions", "messages_table": f"{name}_messages"}
        catalog = SessionCatalog(engine, create_tables=True, **tables)
        await catalog.create_index("$text")
        await _fill(catalog, "c", ["clara"])
        if name == "both":
            await _fill(catalog, "o", ["dora"])
        for table, columns in (
            ("sessions", ("created_at", "updated_at")),
            ("messages", ("created_at",)),
        ):
            values = ", ".join(f"{column} = '2026-01-02 03:04:05'" for column in columns)
            await raw.execute(engine, f"UPDATE {name}_{table} SET {values}")
        columns = ", ".join(f"{each} = 1767323045000000" for each in ("started_at", "alive_at"))
        runs = f"UPDATE {name}_sessions_metadata_runs SET {columns}"
        await raw.execute(engine, runs)
        catalogs.append(catalog)
    return catalogs[0], catalogs[1]


@pytest.mark.scaled
@pytest.mark.logic
async def test_calls_on_a_readable_catalog_depend_on_nothing_outside(shared_database):
    engine = shared_database.engine()
    alone, both = await _two(engine)
    before = await all_rows(engine)
    first, second = Reader(alone), Reader(both)
    for number in range(scale(150, 5_000)):
        expected = await first.call(f"readable {number}")
        assert await second.call(f"readable {number}") == expected, number
    assert await all_rows(engine) == before
    assert len(CALLS) > 50


def _http(dice: random.Random, name: str) -> tuple[str, str, Any]:
    one = f"/conversations/{name}"
    message = {"type": "message", "role": "user", "content": "x"}
    where = json.dumps(dice.choice([{}, {"owner_id": {"$ne": "x"}}, {"title": {"$gte": "a"}}]))
    return dice.choice(
        [
            ("GET", f"/conversations?where={where}&limit=2", None),
            ("POST", "/conversations", {"metadata": {"a": 1}, "items": [message]}),
            ("GET", one, None),
            ("POST", one, {"metadata": {"a": 1}}),
            ("DELETE", one, None),
            ("GET", f"{one}/items?order={dice.choice(['asc', 'desc'])}", None),
            ("POST", f"{one}/items", {"items": [message]}),
            ("GET", f"{one}/items/msg_asm{dice.randrange(12)}", None),
            ("DELETE", f"{one}/items/msg_asm{dice.randrange(12)}", None),
            ("POST", f"{one}/fork", {}),
            ("POST", f"{one}/rewind", {"turns": 1}),
            ("GET", f"{one}/run", None),
            ("GET", f"{one}/run/events", None),
            ("POST", f"{one}/run/cancel", {}),
            ("POST", f"{one}/run/decisions", {"call_id": "call-0", "approve": True}),
            ("GET", f"/search?query={dice.choice(['Lisbon', 'tram', 'castle'])}", None),
            ("GET", f"/metadata/{dice.choice(['tags', 'members'])}/values?where={where}", None),
        ]
    )


def _page(dice: random.Random, name: str) -> tuple[str, str, Any]:
    number = dice.randrange(12)
    form = {"id": name, "token": "t", "before": str(number), "last": str(number), "call": "call-0"}
    form |= {"title": "x", "shown_title": "", "select": name, "tag": "x"}
    reads = ("/", f"/session?id={name}", f"/session.json?id={name}", "/runs", "/statistics")
    reads += (f"/item?id={name}&item={number}", f"/delete?id={name}", f"/rewind?id={name}&before=1")
    writes = ("/edit", "/fork", "/delete", "/rewind", "/approve", "/reject", "/discard", "/stop")
    writes += ("/tag", "/archive", "/delete-selected")
    return dice.choice(
        [*(("GET", path, None) for path in reads)] + [("POST", path, form) for path in writes]
    )


@pytest.mark.scaled
@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("door", ["http", "browser"])
async def test_a_door_answers_writes_with_403_and_shows_nothing_outside(engine, door):
    alone, both = await _two(engine)
    before, where = await all_rows(engine), {"members": {"$contains": "clara"}}
    clients = []
    for catalog in (alone, both):
        scope = lambda _, catalog=catalog: catalog.readable(where)  # noqa: E731
        runs = SessionRuns(catalog)
        app: Any = sessions_app(catalog, scope=scope, runs=runs, allow_decisions=True)
        if door == "browser":
            app = browser_app(catalog, scope=scope, allow_write=True)
        transport = httpx2.ASGITransport(app)
        clients.append(httpx2.AsyncClient(transport=transport, base_url="http://localhost:8000"))
        clients[-1].cookies.set("agent_sessions_form", "t")
    refused = 0
    for number in range(scale(150, 5_000)):
        answers = []
        for client in clients:
            dice = random.Random(f"{door} {number}")
            make = _http if door == "http" else _page
            method, path, body = make(dice, dice.choice([*LIBRARY_IDS, "nobody"]))
            given = {} if body is None else {"json": body} if door == "http" else {"data": body}
            headers = {"origin": "http://localhost:8000"}
            answers.append(await client.request(method, path, headers=headers, **given))
        texts = [answer.text for answer in answers]
        assert texts[0] == texts[1], (method, path)
        assert answers[0].status_code == answers[1].status_code
        if method != "GET":
            # Over HTTP, what cannot be seen does not exist.
            allowed = (403, 404) if door == "http" else (403,)
            assert answers[1].status_code in allowed, (path, texts[1])
            refused += answers[1].status_code == 403
        else:
            assert answers[1].status_code in (200, 400, 404, 405), (path, texts[1])
    assert refused > 10
    assert await all_rows(engine) == before


@pytest.mark.scaled
@pytest.mark.only_on("sqlite")
async def test_mcp_offers_no_writing_tools_and_shows_nothing_outside(engine):
    alone, both = await _two(engine)
    where = {"members": {"$contains": "clara"}}
    before = await all_rows(engine)
    servers = [make_server(each.readable(where), allow_write=True) for each in (alone, both)]
    async with Client(servers[0]) as first, Client(servers[1]) as second:
        assert {tool.name for tool in (await second.list_tools()).tools} == set(READ_TOOLS)
        for number in range(scale(100, 5_000)):
            dice = random.Random(number)
            name = dice.choice([*LIBRARY_IDS, "nobody"])
            tool, arguments = dice.choice(
                [
                    ("get_metadata", {"session": name}),
                    ("list_sessions", {"limit": 3}),
                    ("find_sessions", {"key": "tags", "value": "Lisbon"}),
                    ("get_history", {"session": name}),
                    ("search_sessions", {"query": "Lisbon"}),
                    ("list_runs", {}),
                    *((each, {"session": name}) for each in WRITE_TOOLS),
                ]
            )
            answers = [
                [content.text for content in (await client.call_tool(tool, arguments)).content]
                for client in (first, second)
            ]
            assert answers[0] == answers[1], (tool, arguments)
    assert await all_rows(engine) == before
    assert not rows_with({"": answers[1]}, "dora")


@pytest.mark.logic
async def test_a_scope_can_return_the_catalog_itself(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat", metadata={"owner_id": "anna"})
    app = sessions_app(catalog, scope=lambda request: catalog)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/conversations/chat")).status_code == 200
        assert (await client.delete("/conversations/chat")).status_code == 200
    assert await catalog.count_sessions() == 0


@pytest.mark.logic
async def test_streams_of_two_readable_catalogs_are_not_shared(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    streams = Streams(10, 10)

    async def opened(name: str) -> asyncio.Task[None]:
        visible = catalog.readable({"members": {"$contains": name}})
        sent, gone = asyncio.Event(), asyncio.Event()

        async def receive():
            await gone.wait()

        async def send(message):
            sent.set()

        stream = streams.follow(visible, None, dict, None)
        task = asyncio.ensure_future(stream({"type": "http"}, receive, send))
        await sent.wait()
        return task

    tasks = [await opened(name) for name in ("clara", "dora", "dora")]
    assert len(streams._polls) == 2
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
