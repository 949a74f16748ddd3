"""HTTP beside the servers of other libraries, ChatKit beside hand-written stores, and the browser.

Servers run in processes of their own, all behind uvicorn with the same settings; the client keeps
its connection. Peers are asked for the same page with the parameters that their routes have:
google-adk's route has none, and sends all sessions of the user.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog
from agents_session_metadata.http import sessions_app

from . import load
from . import operations as op
from .catalog import Effort
from .data import LARGEST_OWNER, Corpus
from .databases import Server
from .measure import Operation, Timings, contest
from .serving import USER_HEADER, Client, serving

OURS, ADK, AGNO = "this package", "google-adk", "agno"
HTTP, APPLICATION, CATALOG, BYTES = "over HTTP", "application alone", "catalog", "bytes alone"
PAGE, COST = "page", "cost"
THREADS, LOAD_THREADS = "threads", "load_threads"
MEMORY, SQL, SQL_INDEXED = "memory", "SQL", "SQL, with an index"
READY = "ChatKit's server alone"
SMALL, LARGE = 1_000, (100_000, 1_000_000)
SESSIONS, THREAD_COUNT = 100_000, 10_000


@dataclass
class DoorResults:
    """What was measured on one server.

    Attributes:
        contests: Timings by what is compared; the first party is the one that is judged.
        leaks: The methods through which each ChatKit store leaks.
    """

    contests: dict[str, Timings] = field(default_factory=dict)
    leaks: dict[str, list[str]] = field(default_factory=dict)


class _Browsed(Corpus):
    """As many messages per session at every size: the list shows the first of them."""

    @property
    def messages(self) -> int:
        return 2


async def measure_doors(
    server: Server,
    sizes: Sequence[int],
    effort: Effort,
    report: Callable[[str], None],
    *,
    with_peers: bool,
) -> DoorResults:
    """Measure HTTP on every server, and on SQLite ChatKit and the browser."""
    results = DoorResults()

    async def measured(parties: dict[str, Operation]) -> Timings:
        return await contest(parties, rounds=effort.rounds, seconds=effort.seconds)

    if SESSIONS in sizes:
        report(f"{server.title}: {SESSIONS:,} sessions behind HTTP")
        await _measure_http(server, results, measured, with_peers=with_peers)
    if server.kind != "sqlite":
        return results
    report(f"{server.title}: {THREAD_COUNT:,} threads of ChatKit")
    await _measure_chatkit(server, results, measured)
    browsed = [size for size in LARGE if size in sizes and SMALL in sizes]
    if browsed:
        report(f"{server.title}: the first page of the browser")
        await _measure_browser(server, browsed, results, measured)
    return results


_Measure = Callable[[dict[str, Operation]], Any]


async def _fill(url: URL, corpus: Corpus, *keys: str) -> None:
    """Load sessions and create indexes."""
    engine = create_async_engine(url)
    await load.load_ours(engine, corpus)
    catalog = SessionCatalog(engine, create_tables=True)
    for key in keys:
        await catalog.create_index(key)
    if engine.dialect.name == "postgresql":
        async with engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("VACUUM (ANALYZE)"))
    await engine.dispose()


async def _measure_http(
    server: Server, results: DoorResults, measured: _Measure, *, with_peers: bool
) -> None:
    corpus = Corpus(SESSIONS)
    url = await server.create("http")
    opened = [url]
    path = f"/conversations?limit={op.PAGE}"
    with contextlib.ExitStack() as stack:
        try:
            await _fill(url, corpus, "owner_id")
            ours = stack.enter_context(serving("ours", url))
            parties = {OURS: ours.operation(path, LARGEST_OWNER)}
            found = json.loads(ours.get(path, LARGEST_OWNER))["data"]
            expected = [each["id"] for each in found]
            assert len(expected) == op.PAGE
            if with_peers and server.kind != "mysql":
                for name, client, peer_path, shown in await _peers(server, corpus, stack, opened):
                    # google-adk's party writes the first session of each user at its own time.
                    others = set(shown(json.loads(client.get(peer_path))))
                    assert len(others & set(expected)) >= op.PAGE - 1, name
                    parties[name] = client.operation(peer_path)
            results.contests[PAGE] = await measured(parties)
            results.contests[COST] = await measured(await _layers(url, path, ours, stack))
        finally:
            stack.close()
            for each in opened:
                await server.drop(each)


async def _peers(
    server: Server, corpus: Corpus, stack: contextlib.ExitStack, opened: list[URL]
) -> list[tuple[str, Client, str, Callable[[Any], list[str]]]]:
    """The servers of others, what they are asked, and which sessions they answer with."""
    from . import peers

    def of_adk(answer: Any) -> list[str]:
        newest = sorted(answer, key=lambda each: each["lastUpdateTime"], reverse=True)
        return [each["id"] for each in newest[: op.PAGE]]

    query = {"user_id": LARGEST_OWNER, "limit": op.PAGE, "sort_by": "updated_at", "type": "agent"}
    found: list[tuple[str, Client, str, Callable[[Any], list[str]]]] = []
    for name, party, kind, path, shown in (
        (ADK, peers.ADK(), "adk", f"/apps/benchmark/users/{LARGEST_OWNER}/sessions", of_adk),
        (
            AGNO,
            peers.Agno(),
            "agno",
            f"/sessions?{urlencode(query)}",
            lambda answer: [each["session_id"] for each in answer["data"]],
        ),
    ):
        url = await server.create("http")
        opened.append(url)
        await party.open(url, corpus)
        await party.close()
        found.append((name, stack.enter_context(serving(kind, url)), path, shown))
    return found


async def _layers(
    url: URL, path: str, served: Client, stack: contextlib.ExitStack
) -> dict[str, Operation]:
    """The same page with fewer and fewer layers around it."""
    catalog = SessionCatalog.from_url(url)
    mine = catalog.scoped({"owner_id": LARGEST_OWNER})
    app = sessions_app(catalog, scope=lambda _: {"owner_id": LARGEST_OWNER})
    body = served.get(path, LARGEST_OWNER)
    bytes_alone = stack.enter_context(serving("bytes", str(len(body))))

    async def through_application(_: int) -> None:
        assert await call_application(app, path) == body

    return {
        HTTP: served.operation(path, LARGEST_OWNER),
        CATALOG: lambda _: mine.list_sessions(None, limit=op.PAGE),
        APPLICATION: through_application,
        BYTES: bytes_alone.operation("/"),
    }


async def call_application(app: Any, path: str) -> bytes:
    """Call an ASGI application without a server."""
    plain, _, query = path.partition("?")
    sent: list[bytes] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), (USER_HEADER.encode(), b"")],
        "root_path": "",
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await app(scope, receive, send)
    return b"".join(sent)


async def _measure_chatkit(server: Server, results: DoorResults, measured: _Measure) -> None:
    from agents_session_metadata.chatkit import CatalogStore

    from .chatkit_stores import MemoryStore, ReadyStore, SQLStore, User, leaks, threads
    from .chatkit_stores import Server as ChatKit

    user, made = User("u1"), threads(THREAD_COUNT)
    urls = {name: await server.create("chatkit") for name in ("ours", "leaks", SQL, SQL_INDEXED)}

    def ours(catalog: SessionCatalog) -> Any:
        return CatalogStore(catalog, scope=lambda context: {"owner_id": context.user_id})

    def sql(name: str, *, suffix: str = "") -> SQLStore:
        return SQLStore(f"{urls[name].database}{suffix}", indexed=name == SQL_INDEXED)

    catalogs = {
        name: SessionCatalog.from_url(urls[name], create_tables=True) for name in ("ours", "leaks")
    }
    async with contextlib.AsyncExitStack() as stack:
        for catalog in catalogs.values():
            await stack.enter_async_context(catalog)
        await catalogs["ours"].import_sessions(
            {
                "format": 1,
                "session_id": each.id,
                "created_at": each.created_at.isoformat(),
                "updated_at": each.created_at.isoformat(),
                "metadata": {"owner_id": user.user_id, "title": each.title, "chatkit": {}},
                "items": [],
            }
            for each in made
        )
        await catalogs["ours"].create_index("owner_id")
        memory = MemoryStore()
        for each in made:
            await memory.save_thread(each, user)
        stores: dict[str, Any] = {OURS: ours(catalogs["ours"]), MEMORY: memory}
        for name in (SQL, SQL_INDEXED):
            stores[name] = sql(name)
            stores[name].fill(made, user)
        stores[READY] = ReadyStore(await memory.load_threads(op.PAGE, None, "desc", user))
        request = json.dumps({"type": "threads.list", "params": {"limit": op.PAGE}})

        def listing(store: Any) -> Operation:
            chatkit = ChatKit(store)
            return lambda _: chatkit.process(request, user)

        parties = {name: listing(store) for name, store in stores.items()}
        newest = [each.id for each in made[: -op.PAGE - 1 : -1]]
        for name, call in parties.items():
            answer = json.loads((await call(0)).json)
            assert [each["id"] for each in answer["data"]] == newest, name
        results.contests[THREADS] = await measured(parties)

        def loading(store: Any) -> Operation:
            return lambda _: store.load_threads(op.PAGE, None, "desc", user)

        del stores[READY]
        alone = {name: loading(store) for name, store in stores.items()}
        results.contests[LOAD_THREADS] = await measured(alone)
        results.leaks = {
            OURS: await leaks(ours(catalogs["leaks"])),
            MEMORY: await leaks(MemoryStore()),
            SQL: await leaks(sql("leaks", suffix="-sql")),
        }
    for url in urls.values():
        await server.drop(url)


async def _measure_browser(
    server: Server, sizes: Sequence[int], results: DoorResults, measured: _Measure
) -> None:
    urls: list[URL] = []
    with contextlib.ExitStack() as stack:
        try:
            parties = {}
            for size in (SMALL, *sizes):
                url = await server.create("browser")
                urls.append(url)
                await _fill(url, _Browsed(size), "owner_id", "$updated_at")
                client = stack.enter_context(serving("browser", url))
                assert client.get("/").count(b"<tr>") > op.PAGE
                parties[size] = client.operation("/")
            for size in sizes:
                both = {"large": parties[size], "small": parties[SMALL]}
                results.contests[first_page(size)] = await measured(both)
        finally:
            stack.close()
            for url in urls:
                await server.drop(url)


def first_page(size: int) -> str:
    """The name of a comparison of the browser's first page at so many sessions with few."""
    return f"browser, {size:,}"
