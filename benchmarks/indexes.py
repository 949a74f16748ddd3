"""What indexes are for: pages, the last session and retention whose cost does not grow.

The corpus has owners with 100, 1,000 and 10,000 sessions and agents with 100 and 10,000, however
many sessions there are, as long as each has a tenth of all at most. "Without index" asks the same
database, through a catalog that believes that there are no indexes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import SessionCatalog, session_tables
from agents_session_metadata.maintenance.retention import expired, sparing_paused
from agents_session_metadata.query.logic import All
from agents_session_metadata.query.walks import read_sessions
from agents_session_metadata.storage.activity import ACTIVITY
from agents_session_metadata.storage.known import Known

from . import load
from . import operations as op
from .catalog import Effort
from .data import FIXED_OWNER, Corpus, Session, message
from .databases import Server, StatementCounter
from .measure import Operation, Timings, contest
from .parties import Plain

WITH, WITHOUT, SDK = "with index", "without index", "plain SDK"
SMALL, MEDIUM, LARGE = 10_000, 100_000, 1_000_000
OWNERS = {100: "owner-hundred", 1_000: FIXED_OWNER, 10_000: "owner-ten-thousand"}
AGENTS = {100: "agent-hundred", 10_000: "agent-ten-thousand"}
COMMON_AGENT = "agent-common"
FIVE_ENTRIES = ("owner_id", "tags", "$updated_at")
"""Keys whose indexes have five entries per session, as each has three tags."""
GROWTH, NO_FILTER, LAST, RETENTION = "page", "page without a filter", "last session", "retention"
ONE, TAG, ADD, SET = "page / get_metadata", "tag, newest 20", "add_items", "set_metadata"
_BATCH = 500

_Owner = dict[str, Any]
_OF_OWNER: _Owner = {"owner_id": OWNERS[10_000]}
CONDITIONS: dict[str, dict[str, Any]] = {
    "owner of 10,000 and a value of 1 session": {**_OF_OWNER, "project": "one"},
    "owner of 10,000 and a value of 500": {**_OF_OWNER, "project": "few"},
    "owner of 10,000 and a value of his 600 oldest": {**_OF_OWNER, "project": "more"},
    "owner of 10,000 and a value of 5,000 old ones": {**_OF_OWNER, "project": "old"},
    "owner of 10,000 and a value of 70 % of all": {**_OF_OWNER, "status": "active"},
    "owner of 10,000 and a value of 2 % of all": {**_OF_OWNER, "status": "abandoned"},
    "owner of 10,000 and a tag of 1.5 % of all": {**_OF_OWNER, "tags": {"$contains": op.TAG}},
    "owner of 10,000 and a range of 10 % of all": {**_OF_OWNER, "priority": {"$gte": 9}},
    "owner of 10,000 and a range of 0.1 % of all": {**_OF_OWNER, "cost": {"$lt": 0.01}},
    "agent of 89 % and a value of 500": {"agent": COMMON_AGENT, "project": "few"},
    "agent of 89 % and a range of 0.01 % of all": {"agent": COMMON_AGENT, "cost": {"$lt": 0.001}},
}
"""Filters in which a condition stands beside the one that has an index."""


@dataclass
class IndexResults:
    """What was measured on one server; the first party of each is the one that is judged.

    Attributes:
        contests: Timings by what is compared.
        owners: Timings of a page by the number of sessions that its owner has.
        conditions: Timings of pages with further conditions, by the number of all sessions.
        statements: How many statements calls send.
    """

    contests: dict[str, Timings] = field(default_factory=dict)
    owners: dict[int, Timings] = field(default_factory=dict)
    conditions: dict[int, dict[str, Timings]] = field(default_factory=dict)
    statements: dict[str, int] = field(default_factory=dict)


class MarkedCorpus(Corpus):
    """A corpus with the owners, agents and projects that are asked for."""

    def __iter__(self) -> Iterator[Session]:
        for number, session in enumerate(super().__iter__()):
            session.metadata["agent"] = COMMON_AGENT
            marks = (
                ("owner_id", OWNERS[100], 100, 1),
                ("owner_id", OWNERS[10_000], 10_000, 3),
                ("agent", AGENTS[100], 100, 4),
                ("agent", AGENTS[10_000], 10_000, 5),
            )
            for key, value, count, place in marks:
                every, turn = divmod(number - place, max(1, self.size // count))
                if 10 * count <= self.size and turn == 0 and every < count:
                    session.metadata[key] = value
                    if value == OWNERS[10_000]:
                        session.metadata["project"] = _project(every)
            yield session


def _project(number: int) -> str:
    """That of an owner's sessions, from the oldest to the newest."""
    for name, first in (("new", 6_101), ("old", 1_101), ("more", 501), ("few", 1)):
        if number >= first:
            return name
    return "one"


class Indexed:
    """This package's tables, filled, with indexes."""

    def __init__(self, url: URL, corpus: Corpus) -> None:
        self.url = url
        self.corpus = corpus
        self.engine: AsyncEngine = create_async_engine(url)
        self.catalog = SessionCatalog(self.engine)
        self._other_engine = create_async_engine(url)
        self.without = SessionCatalog(self._other_engine)
        self.without._store.database._state.indexes = Known(lambda *_: None, None, seconds=math.inf)

    async def fill(self, keys: Sequence[str]) -> None:
        """Load the corpus and create the indexes."""
        await load.load_ours(self.engine, self.corpus)
        if not keys:
            return
        creating = SessionCatalog(self.engine, create_tables=True)
        for key in keys:
            await creating.create_index(key)
        tables = session_tables().group(ACTIVITY).tables
        await load.analyze(self.engine, [table.name for table in tables])

    def page(self, where: Any, *, indexed: bool = True) -> Operation:
        """The newest 20 sessions of a filter, with their metadata."""
        catalog = self.catalog if indexed else self.without
        return lambda _: catalog.list_sessions(where, limit=op.PAGE)

    def both(self, where: Any) -> dict[str, Operation]:
        """The same with and without index."""
        return {WITH: self.page(where), WITHOUT: self.page(where, indexed=False)}

    async def oldest(self, _: int) -> int:
        """What retention reads to find a batch of sessions."""
        condition = expired(All(()), timedelta(hours=1))
        store = self.catalog._store
        condition = await sparing_paused(store, condition, timedelta(days=90))
        found = await read_sessions(
            store.database, lambda reader: reader.oldest(condition, limit=_BATCH + 1)
        )
        if found is None or len(found) != _BATCH + 1:
            raise RuntimeError("retention does not use the index")
        return len(found)

    async def close(self) -> None:
        """Let go of the database."""
        await self.engine.dispose()
        await self._other_engine.dispose()


async def measure_indexes(
    server: Server,
    sizes: Sequence[int],
    effort: Effort,
    report: Callable[[str], None],
    *,
    with_peers: bool,
) -> IndexResults:
    """Measure everything on one server; MariaDB up to 100,000 sessions."""
    most = MEDIUM if server.kind == "mysql" else LARGE
    results = IndexResults()
    bases: dict[int, Indexed] = {}

    async def measured(parties: dict[str, Operation]) -> Timings:
        return await contest(parties, rounds=effort.rounds, seconds=effort.seconds)

    try:
        for size in (each for each in sizes if SMALL <= each <= most):
            report(f"{server.title}: {size:,} sessions with indexes")
            base = Indexed(await server.create("indexes"), MarkedCorpus(size))
            bases[size] = base
            tags = ["tags"] if size == MEDIUM else []
            await base.fill(["owner_id", "agent", "$updated_at", *tags])
        report(f"{server.title}: measuring what grows with the sessions")
        for size in (each for each in bases if each > SMALL and SMALL in bases):
            await _measure_growth(bases[SMALL], bases[size], size, results, measured)
        if MEDIUM in bases:
            report(f"{server.title}: measuring beside others")
            peers = with_peers and server.kind != "mysql"
            await _measure_others(server, bases[MEDIUM], results, measured, peers=peers)
        for size in (each for each in bases if each > SMALL):
            report(f"{server.title}: measuring further conditions among {size:,} sessions")
            results.conditions[size] = {
                what: await measured(bases[size].both(where)) for what, where in CONDITIONS.items()
            }
        if bases:
            results.statements = await _count_statements(max(bases.items())[1])
        report(f"{server.title}: measuring writes")
        await _measure_writes(server, results, measured)
    finally:
        for base in bases.values():
            await base.close()
            await server.drop(base.url)
    return results


_Measure = Callable[[dict[str, Operation]], Any]


async def _measure_growth(
    small: Indexed, large: Indexed, size: int, results: IndexResults, measured: _Measure
) -> None:
    """Compare many sessions with few, and what is asked for one session."""
    few, many = min(OWNERS), max(each for each in OWNERS if 10 * each <= size)
    one = [large.catalog.session(each.session_id) for each in large.corpus.sample]
    page = large.page({"owner_id": OWNERS[many]})
    parties: dict[str, dict[str, Operation]] = {
        GROWTH: {"large": page, "small": small.page({"owner_id": OWNERS[few]})},
        ONE: {"large": page, "small": lambda number: one[number % len(one)].get_metadata()},
        NO_FILTER: {"large": large.page(None), "small": small.page(None)},
        RETENTION: {"large": large.oldest, "small": small.oldest},
        LAST: {
            "large": lambda _: large.catalog.last_session({"agent": AGENTS[10_000]}),
            "small": lambda _: large.catalog.last_session({"agent": AGENTS[100]}),
        },
    }
    for what, calls in parties.items():
        results.contests[at_size(what, size)] = await measured(calls)


def at_size(what: str, size: int) -> str:
    """The name of a comparison of so many sessions with few."""
    return f"{what}, {size:,}"


async def _measure_others(
    server: Server, base: Indexed, results: IndexResults, measured: _Measure, *, peers: bool
) -> None:
    """Compare pages of owners and a tag with the plain table's, and with LangGraph's store."""
    plain = Plain()
    parties: list[Any] = [plain]
    if peers:
        from .peers import LangGraphByOwner

        parties.append(LangGraphByOwner())
    opened: list[Any] = []
    try:
        for party in parties:
            opened.append(party)
            await party.open(await server.create("indexes"), base.corpus)
        for count, owner in OWNERS.items():
            calls = base.both({"owner_id": owner})
            calls |= {party.name: party.newest_of(owner) for party in parties}
            results.owners[count] = await measured(calls)
        where = {"tags": {"$contains": op.TAG}}

        def tagged(catalog: SessionCatalog) -> Operation:
            find = catalog.session("any").find_sessions_by_metadata
            return lambda _: find(where, limit=op.PAGE)

        calls = {
            WITH: tagged(base.catalog),
            WITHOUT: tagged(base.without),
            plain.name: plain.newest_tagged,
        }
        assert (await calls[WITH](0)) == (await calls[plain.name](0))
        results.contests[TAG] = await measured(calls)
    finally:
        for party in opened:
            await party.close()
            await server.drop(party.url)


async def _measure_writes(server: Server, results: IndexResults, measured: _Measure) -> None:
    """Compare writes with and without indexes, with the SDK's and with the plain table's."""
    corpus = MarkedCorpus(SMALL)
    bases = {name: Indexed(await server.create("writes"), corpus) for name in (WITH, WITHOUT, SDK)}
    plain = Plain()
    try:
        await bases[WITH].fill(FIVE_ENTRIES)
        await bases[WITHOUT].fill(())
        # The SDK cannot create its tables on MariaDB: all of ours are there, and nobody uses them.
        await bases[SDK].fill(())
        await plain.open(await server.create("writes"), corpus)
        written = op.written_ids(corpus)
        items: Any = [message(0), message(1)]

        def adding(session: SQLAlchemySession) -> Operation:
            return lambda _: session.add_items(items)

        results.contests[ADD] = await measured(
            {
                WITH: adding(bases[WITH].catalog.session(written[0])),
                WITHOUT: adding(bases[WITHOUT].catalog.session(written[0])),
                SDK: adding(SQLAlchemySession(written[0], engine=bases[SDK].engine)),
            }
        )

        def setting(base: Indexed) -> Operation:
            sessions = [base.catalog.session(each) for each in written]
            return lambda number: sessions[number % len(sessions)].set_metadata(op.changes(number))

        results.contests[SET] = await measured(
            {
                WITHOUT: setting(bases[WITHOUT]),
                WITH: setting(bases[WITH]),
                plain.name: plain.operations()[op.SET],
            }
        )
    finally:
        for base in bases.values():
            await base.close()
            await server.drop(base.url)
        await plain.close()
        await server.drop(plain.url)


async def _count_statements(base: Indexed) -> dict[str, int]:
    """The statements of pages; with further conditions, the most of any of them."""
    owner = {"owner_id": OWNERS[1_000]}

    async def count(where: Any, **options: Any) -> int:
        await base.catalog.list_sessions(where, limit=op.PAGE, **options)
        with StatementCounter(base.engine) as counter:
            await base.catalog.list_sessions(where, limit=op.PAGE, **options)
        return len(counter.statements)

    return {
        "page": await count(owner),
        "page with preview": await count(owner, preview=True),
        "page, further conditions": max([await count(where) for where in CONDITIONS.values()]),
    }
