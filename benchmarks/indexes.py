"""Pages and writes with the index on `updated_at`, beside the same without it.

The corpus has owners of 100, 1,000 and 10,000 sessions, each at most a tenth of all, however many
sessions there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog

from . import load
from .catalog import PLAIN, Plain
from .data import FIXED_OWNER, PAGE, TAG, Corpus, Session, changes, message, written_ids
from .databases import Server
from .measure import Effort, Operation, contest
from .report import Report

SECTION = "Indexes: ratios and ms"
CONDITIONS_SECTION = "{:,} sessions, further conditions: with index / without, ms"
BY_NAMESPACE = "LangGraph's store, namespace per owner"
WITH, WITHOUT, SDK = "with index", "without index", "plain SDK"
SMALL, MEDIUM, LARGE = 10_000, 100_000, 1_000_000
OWNERS = {100: "owner-hundred", 1_000: FIXED_OWNER, 10_000: "owner-ten-thousand"}
COMMON_AGENT = "agent-common"

_OF_OWNER: dict[str, Any] = {"owner_id": OWNERS[10_000]}
CONDITIONS: dict[str, dict[str, Any]] = {
    "owner of 10,000 and a value of 1 session": {**_OF_OWNER, "project": "one"},
    "owner of 10,000 and a value of 500": {**_OF_OWNER, "project": "few"},
    "owner of 10,000 and a value of the 600 oldest": {**_OF_OWNER, "project": "more"},
    "owner of 10,000 and a value of 5,000 old ones": {**_OF_OWNER, "project": "old"},
    "owner of 10,000 and a value of 70 % of all": {**_OF_OWNER, "status": "active"},
    "owner of 10,000 and a value of 2 % of all": {**_OF_OWNER, "status": "abandoned"},
    "owner of 10,000 and a tag of 1.5 % of all": {**_OF_OWNER, "tags": {"$contains": TAG}},
    "owner of 10,000 and a range of 10 % of all": {**_OF_OWNER, "priority": {"$gte": 9}},
    "owner of 10,000 and a range of 0.1 % of all": {**_OF_OWNER, "cost": {"$lt": 0.01}},
    "agent of 99 % and a value of 500": {"agent": COMMON_AGENT, "project": "few"},
    "agent of 99 % and a range of 0.01 % of all": {"agent": COMMON_AGENT, "cost": {"$lt": 0.001}},
}
"""Filters with a second condition."""


class MarkedCorpus(Corpus):
    """A corpus with the owners, agents and projects of the filters."""

    def __iter__(self) -> Iterator[Session]:
        for number, session in enumerate(super().__iter__()):
            session.metadata["agent"] = COMMON_AGENT if number % 100 else "agent-rare"
            for count, place in ((100, 1), (10_000, 3)):
                every, turn = divmod(number - place, max(1, self.size // count))
                if 10 * count <= self.size and turn == 0 and every < count:
                    session.metadata["owner_id"] = OWNERS[count]
                    if count == 10_000:
                        session.metadata["project"] = _project(every)
            yield session


def _project(number: int) -> str:
    """The project of one of an owner's sessions, which are counted from the oldest."""
    for name, first in (("new", 6_101), ("old", 1_101), ("more", 501), ("few", 1)):
        if number >= first:
            return name
    return "one"


class Base:
    """A database with this package's tables and a corpus."""

    def __init__(self, server: Server, url: URL) -> None:
        self._server, self._url = server, url
        self.engine = create_async_engine(url)
        self.catalog = SessionCatalog(self.engine, create_tables=True)

    @classmethod
    async def make(cls, server: Server, corpus: Corpus, *, indexed: bool) -> Base:
        """Load a corpus, with or without the index."""
        base = cls(server, await server.create("indexes"))
        await load.load_ours(base.engine, corpus)
        if not indexed:
            await base.catalog.drop_index("$updated_at")
        await load.analyze(base.engine)
        return base

    def page(self, where: Any) -> Operation:
        """The newest 20 sessions of a filter, with their metadata."""
        return lambda _: self.catalog.list_sessions(where, limit=PAGE)

    async def close(self) -> None:
        """Drop the database."""
        await self.engine.dispose()
        await self._server.drop(self._url)


async def measure_indexes(
    server: Server, sizes: Sequence[int], effort: Effort, report: Report
) -> None:
    """Measure everything on one server; on MariaDB up to 100,000 sessions."""
    most = MEDIUM if server.kind == "mysql" else LARGE
    small: Base | None = None
    for size in (each for each in sizes if each == SMALL or MEDIUM <= each <= most):
        report.progress(f"loading {size:,} sessions with indexes")
        corpus = MarkedCorpus(size)
        indexed = await Base.make(server, corpus, indexed=True)
        if size == SMALL:
            small = indexed
            continue
        if small is not None:
            await _measure_growth(small, indexed, corpus, effort, report)
        plain = await Base.make(server, corpus, indexed=False)
        await _measure_conditions(indexed, plain, size, effort, report)
        if size == MEDIUM:
            await _measure_others(server, corpus, indexed, plain, effort, report)
        await plain.close()
        await indexed.close()
    if small is not None:
        await small.close()
        await _measure_writes(server, effort, report)


async def _measure_growth(
    small: Base, large: Base, corpus: Corpus, effort: Effort, report: Report
) -> None:
    """Compare the page of a large owner with that of a small one, and with one session."""
    page = large.page(_OF_OWNER)
    timings = await contest({"large": page, "small": small.page({"owner_id": OWNERS[100]})}, effort)
    what = f"page, owner of 10,000 of {corpus.size:,} / of 100 of {SMALL:,}"
    report.compare(SECTION, what, timings, "large", "small")
    one = [large.catalog.session(each.session_id) for each in corpus.sample]
    timings = await contest(
        {"page": page, "get": lambda number: one[number % len(one)].get_metadata()}, effort
    )
    what = f"page, owner of 10,000 of {corpus.size:,} / `get_metadata`"
    report.compare(SECTION, what, timings, "page", "get")


async def _measure_conditions(
    indexed: Base, plain: Base, size: int, effort: Effort, report: Report
) -> None:
    """Compare pages whose filter has a second condition: at most 1.5 times as long as without."""
    for what, where in CONDITIONS.items():
        calls = {WITH: indexed.page(where), WITHOUT: plain.page(where)}
        found = [[info.session_id for info in (await call(0)).sessions] for call in calls.values()]
        assert found[0] == found[1], f"the results differ: {what}"
        timings = await contest(calls, effort)
        # The limit applies to filters that take 10 ms or more.
        limit = 1.5 if timings.milliseconds(WITHOUT) >= 10 else None
        section = CONDITIONS_SECTION.format(size)
        report.compare(section, what, timings, WITH, WITHOUT, limit=limit)


async def _measure_others(
    server: Server,
    corpus: Corpus,
    indexed: Base,
    plain: Base,
    effort: Effort,
    report: Report,
) -> None:
    """Compare the pages of owners and of a tag with a plain table."""
    table, table_url = Plain(), await server.create("plain")
    await table.open(table_url, corpus)
    for count, owner in OWNERS.items():
        where = {"owner_id": owner}
        calls = {
            WITH: indexed.page(where),
            WITHOUT: plain.page(where),
            PLAIN: lambda _, owner=owner: table.table.newest(owner, PAGE),
        }
        timings = await contest(calls, effort)
        for other in (WITHOUT, PLAIN):
            what = f"page, owner of {count:,} of {corpus.size:,} / {other}"
            report.compare(SECTION, what, timings, WITH, other)

    where = {"tags": {"$contains": TAG}}
    find = indexed.catalog.session("any").find_sessions_by_metadata
    calls = {
        WITH: lambda _: find(where, limit=PAGE),
        PLAIN: lambda _: table.table.find_tag(TAG, PAGE),
    }
    assert await calls[WITH](0) == await calls[PLAIN](0)
    timings = await contest(calls, effort)
    what = f"tag, newest 20 of {corpus.size:,} / {PLAIN}"
    report.compare(SECTION, what, timings, WITH, PLAIN)
    await table.close()
    await server.drop(table_url)


async def measure_peers(server: Server, effort: Effort, report: Report) -> None:
    """Compare the page of an owner with that of LangGraph's store, on SQLite and PostgreSQL."""
    from .peers import LangGraphByOwner

    report.progress(f"loading {MEDIUM:,} sessions beside {BY_NAMESPACE}")
    corpus = MarkedCorpus(MEDIUM)
    indexed = await Base.make(server, corpus, indexed=True)
    store, url = LangGraphByOwner(), await server.create("peer")
    await store.open(url, corpus)
    for count, limit in ((10_000, 1.0), (1_000, 1.5), (100, None)):
        owner = OWNERS[count]
        calls = {
            WITH: indexed.page({"owner_id": owner}),
            BY_NAMESPACE: lambda _, owner=owner: store.newest(owner),
        }
        timings = await contest(calls, effort)
        what = f"page, owner of {count:,} of {corpus.size:,} / {BY_NAMESPACE}"
        report.compare(SECTION, what, timings, WITH, BY_NAMESPACE, limit=limit)
    await store.close()
    await server.drop(url)
    await indexed.close()


async def _measure_writes(server: Server, effort: Effort, report: Report) -> None:
    """Compare writes with the index, without it, and by the SDK, whose table has none."""
    corpus = MarkedCorpus(SMALL)
    indexed, plain, sdk = [
        await Base.make(server, corpus, indexed=each) for each in (True, False, False)
    ]
    written = written_ids(corpus)
    items: Any = [message(0), message(1)]

    def adding(session: SQLAlchemySession) -> Operation:
        return lambda _: session.add_items(items)

    timings = await contest(
        {
            WITH: adding(indexed.catalog.session(written[0])),
            WITHOUT: adding(plain.catalog.session(written[0])),
            SDK: adding(SQLAlchemySession(written[0], engine=sdk.engine)),
        },
        effort,
    )
    for other, limit in ((WITHOUT, 1.1), (SDK, None)):
        what = f"`add_items`, with the index / {other}"
        report.compare(SECTION, what, timings, WITH, other, limit=limit)

    def setting(base: Base) -> Operation:
        sessions = [base.catalog.session(each) for each in written]
        return lambda number: sessions[number % len(sessions)].set_metadata(changes(number))

    timings = await contest({WITH: setting(indexed), WITHOUT: setting(plain)}, effort)
    report.compare(SECTION, f"`set_metadata` of five keys / {WITHOUT}", timings, WITH, WITHOUT)
    for base in (indexed, plain, sdk):
        await base.close()
