"""Full-text search beside LIKE and other libraries, and what the text index costs.

The corpus has ten messages of twelve words per session. Words follow Zipf's law; `COMMON` is in
every second message and `NEEDLE` in a hundred, however many messages there are. One owner has a
single session, one has 20 and, from 10,000 sessions on, one has 1,000.

The index is filled by bulk statements with rows from the package's own code. Some are compared with
what `add_items` writes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import accumulate
from typing import Any, NamedTuple

from agents.extensions.memory import SQLAlchemySession
from agents_session_metadata.maintenance.text_index import _TextIndex
from agents_session_metadata.storage.word_index import Queued, item_text
from agents_session_metadata.storage.words import WORDS
from sqlalchemy import URL, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.schema import AddConstraint, DropConstraint

from agents_session_metadata import SessionCatalog, session_tables

from . import load
from .catalog import Effort
from .data import Corpus
from .databases import Server
from .measure import Operation, Timings, contest

MESSAGES = 10
"""The messages of a session."""
SMALL, MEDIUM, LARGE = 10_000, 100_000, 1_000_000
"""Numbers of messages."""
COMMON, NEEDLE, UNUSED, FACT = "common", "needle", "nobodysaysthis", "hazelnuts"
TINY, TWENTY, THOUSAND = "owner-tiny", "owner-twenty", "owner-thousand"
OURS, LIKE, ADK, SDK = "ours", "LIKE", "google-adk", "plain SDK"
SESSIONS_AGO = 400
PAGE = 20
_WORDS = [f"w{number}" for number in range(20_000)]
_SHARES = list(accumulate(1 / (number + 10) for number in range(20_000)))
_FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass
class SearchResults:
    """What was measured on one server; the first party of each contest is the one that is judged.

    Attributes:
        contests: Timings by what is compared.
        figures: Numbers by what was counted.
    """

    contests: dict[str, Timings] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


class Message(NamedTuple):
    """A message as it is stored."""

    item_id: int
    at: datetime
    text: str
    stored: str


class Chat(NamedTuple):
    """A session with its messages."""

    session_id: str
    created_at: datetime
    updated_at: datetime
    metadata: dict[str, Any]
    messages: list[Message]


def sentence(random_: random.Random, words: int) -> str:
    """Words by Zipf's law."""
    return " ".join(random_.choices(_WORDS, cum_weights=_SHARES, k=words))


def item(content: str) -> dict[str, str]:
    """A message."""
    return {"role": "user", "content": content}


@dataclass(frozen=True)
class Messages:
    """So many messages, in sessions of ten: the same ones each time."""

    size: int
    messages = 0  # Those of every other corpus are loaded by `load`.

    def __iter__(self) -> Iterator[Chat]:
        sessions = self.size // MESSAGES
        for number in range(sessions):
            random_ = random.Random(number)
            owner = self._owner(number, sessions)
            first = number * MESSAGES
            messages = [self._message(first + each, random_) for each in range(MESSAGES)]
            if owner == THOUSAND and number // (sessions // 1_000) == 1_000 - SESSIONS_AGO:
                content = f"I am allergic to {FACT}"
                stored = json.dumps(item(content), separators=(",", ":"))
                messages[0] = messages[0]._replace(text=content, stored=stored)
            times = messages[0].at, messages[-1].at
            yield Chat(f"chat-{number:07}", *times, {"owner_id": owner}, messages)

    def _owner(self, number: int, sessions: int) -> str:
        if number == 7:
            return TINY
        if number % (sessions // 20) == 3:
            return TWENTY
        if sessions >= 10_000 and number % (sessions // 1_000) == 5:
            return THOUSAND
        return f"user-{number % 997}"

    def _message(self, number: int, random_: random.Random) -> Message:
        content = sentence(random_, 12)
        if number % 2 == 0:
            content += f" {COMMON}"
        if number % (self.size // 100) == 1:
            content += f" {NEEDLE}"
        at = _FIRST + timedelta(seconds=7 * number)
        return Message(number + 1, at, content, json.dumps(item(content), separators=(",", ":")))


class Searched:
    """A database with a corpus and, if wanted, a text index."""

    def __init__(self, url: URL, corpus: Messages) -> None:
        self.url = url
        self.corpus = corpus
        self.engine = create_async_engine(url)
        self.catalog = SessionCatalog(self.engine, create_tables=True)
        self._kind = self.engine.dialect.name
        self._tables = session_tables()
        self._words = self.catalog._store.database.word_index

    async def fill(self, *, indexed: bool = True) -> dict[str, float]:
        """Load the corpus, with its index; return the bytes of texts and of the index."""
        database = self.catalog._store.database
        await self.catalog.count_sessions()
        await database.ensure(WORDS)
        words = self._words.words
        links = list(words.foreign_key_constraints) if self._kind == "postgresql" else []
        # Checked for all rows at once in the end.
        await self._execute(DropConstraint(link) for link in links)
        corpus: Any = self.corpus
        metadata = self._tables.metadata
        await load._load(self.engine, corpus, self._targets(), [metadata])
        size = await self._size()
        if indexed:
            target = load.Target(
                words.name, ["word", "session_id", "created_at", "item_id"], self._rows_of_words
            )
            await load._load(self.engine, corpus, [target], [words])
        await self._execute(AddConstraint(link) for link in links)
        if self._kind == "postgresql":
            sequence = "pg_get_serial_sequence('agent_messages', 'id')"
            await self._execute(
                [text(f"SELECT setval({sequence}, (SELECT max(id) FROM agent_messages))")]
            )
        if not indexed:
            return {}
        after = await self._size()
        index = _TextIndex(database)
        await index.run(index.begin)
        await index.run(index.create_triggers)
        # All items are indexed, and there are no titles.
        state = self._words.state
        await self._execute([update(state).values(item_id=state.c.last_item)])
        await self.catalog.create_index("$text")
        await self._check()
        await self.add_keys()
        texts = sum(len(each.text.encode()) for chat in self.corpus for each in chat.messages)
        return {"text bytes": texts, "index bytes": after - size}

    def _targets(self) -> list[load.Target]:
        rows, tables = load._Rows(), self._tables
        messages = load.Target(
            tables.messages.name,
            ["id", "session_id", "message_data", "created_at"],
            self._rows_of_messages,
        )
        keys = load.Target(
            tables.metadata.name,
            ["session_id", "key", "value", "search_key", "search_rest"],
            rows.of_metadata,
        )
        no_messages: Any = self.corpus
        return [*load._base_targets(self.engine, no_messages), messages, keys]

    def _rows_of_messages(self, chat: Any) -> Iterator[tuple[Any, ...]]:
        for each in chat.messages:
            yield each.item_id, chat.session_id, each.stored, self._at(each.at)

    def _rows_of_words(self, chat: Any) -> Iterator[tuple[Any, ...]]:
        texts = {
            Queued(chat.session_id, each.item_id): (each.text, self._at(each.at, indexed=True))
            for each in chat.messages
        }
        return (tuple(row.values()) for row in self._words.rows(texts))

    def _at(self, at: datetime, *, indexed: bool = False) -> Any:
        if self._kind == "sqlite":
            return at.strftime("%Y-%m-%d %H:%M:%S")
        if self._kind == "mysql" and indexed:
            return Decimal(int(at.timestamp()))
        return at.replace(tzinfo=None)

    async def add_keys(self) -> None:
        """Give the sessions that are listed six keys, as sessions elsewhere have."""
        owned = (chat for chat in self.corpus if chat.metadata["owner_id"] == TWENTY)
        for chat, like in zip(owned, Corpus(1_000), strict=False):
            metadata = {**like.metadata, "owner_id": TWENTY}
            await self.catalog.set_metadata(chat.session_id, metadata)

    async def _check(self) -> None:
        """Make sure that messages and words are those that `add_items` and the package write."""
        chats = [chat for chat in self.corpus if chat.metadata["owner_id"] == TWENTY]
        for chat in chats[:3]:
            written = f"check-{chat.session_id}"
            session = self.catalog.session(written)
            items: list[Any] = [json.loads(each.stored) for each in chat.messages]
            await session.add_items(items)
            wanted = [Queued(chat.session_id, each.item_id) for each in chat.messages]
            async with self.engine.connect() as connection:
                found = await connection.run_sync(self._words.read_items, wanted)
                texts = {key: (item_text(data), at) for key, (data, at) in found.items()}
                expected = [tuple(row.values()) for row in self._words.rows(texts)]
                loaded = await self._stored_words(connection, chat.session_id)
                assert loaded, "no words were loaded"
                assert loaded == sorted(expected, key=lambda row: (row[3], row[0])), "other words"
                own = await self._stored_words(connection, written)
                assert [row[0] for row in loaded] == [row[0] for row in own], "not as written"
                data = select(self._tables.messages.c.message_data).order_by("id")
                stored = [
                    (await connection.scalars(data.filter_by(session_id=session_id))).all()
                    for session_id in (chat.session_id, written)
                ]
                assert stored[0] == stored[1], "messages are not as they are written"
            await self.catalog.delete_session(written)

    async def _stored_words(self, connection: AsyncConnection, session_id: str) -> Any:
        words = self._words.words
        columns = words.c.word, words.c.session_id, words.c.created_at, words.c.item_id
        query = select(*columns).where(words.c.session_id == session_id, words.c.item_id > 0)
        rows = await connection.execute(query.order_by(words.c.item_id, words.c.word))
        return [(bytes(word), *rest) for word, *rest in rows]

    async def _execute(self, statements: Any) -> None:
        async with self.engine.begin() as connection:
            for statement in statements:
                await connection.execute(statement)

    async def _size(self) -> float:
        """The bytes of the words on a server, and of the whole database on SQLite."""
        name = self._words.words.name
        statements = {
            "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
            "postgresql": f"SELECT pg_total_relation_size('{name}')",
            "mysql": "SELECT data_length + index_length FROM information_schema.tables"
            f" WHERE table_schema = database() AND table_name = '{name}'",
        }
        async with self.engine.connect() as connection:
            return float((await connection.execute(text(statements[self._kind]))).scalar_one())

    def search(self, query: str, owner: str | None = None) -> Operation:
        """A search in the whole database, or within one owner."""
        catalog = self.catalog if owner is None else self.catalog.scoped({"owner_id": owner})
        return lambda _: catalog.search(query, limit=PAGE)

    def like(self, word: str) -> Operation:
        """The newest messages that contain a word, without an index."""
        statement = text(
            "SELECT id, session_id, message_data, created_at FROM agent_messages"
            f" WHERE message_data LIKE '%{word}%' ORDER BY created_at DESC, id DESC LIMIT {PAGE}"
        )

        async def find(_: int) -> Any:
            async with self.engine.connect() as connection:
                return (await connection.execute(statement)).all()

        return find

    def page(self, owner: str, *, preview: bool) -> Operation:
        """The newest sessions of an owner."""
        catalog = self.catalog.scoped({"owner_id": owner})
        return lambda _: catalog.list_sessions(limit=PAGE, preview=preview)

    async def close(self) -> None:
        """Let go of the database."""
        await self.engine.dispose()


_Measure = Callable[[dict[str, Operation]], Any]


async def measure_search(
    server: Server,
    sizes: Sequence[int],
    effort: Effort,
    report: Callable[[str], None],
    *,
    with_peers: bool,
) -> SearchResults:
    """Measure everything on one server; MariaDB up to 100,000 messages."""
    most = MEDIUM if server.kind == "mysql" else LARGE
    results = SearchResults()
    bases: dict[int, Searched] = {}

    async def measured(parties: dict[str, Operation]) -> Timings:
        return await contest(parties, rounds=effort.rounds, seconds=effort.seconds)

    try:
        for size in (each for each in sizes if SMALL <= each <= most):
            report(f"{server.title}: {size:,} messages with a text index")
            bases[size] = Searched(await server.create("search"), Messages(size))
            for name, figure in (await bases[size].fill()).items():
                results.figures[at_size(name, size)] = figure
        report(f"{server.title}: measuring search")
        await measure_reads(bases, results, measured)
        if with_peers and server.kind == "sqlite" and MEDIUM in bases:
            await measure_peers(server, bases[MEDIUM], results, measured)
        report(f"{server.title}: measuring writes beside a text index")
        plain = Searched(await server.create("search"), Messages(SMALL))
        bases[-1] = plain
        await plain.fill(indexed=False)
        if SMALL in bases:
            await measure_writes(bases[SMALL], plain, results, measured)
    finally:
        for base in bases.values():
            await base.close()
            await server.drop(base.url)
    return results


def at_size(name: str, size: int) -> str:
    """The name of what was measured with so many messages."""
    return f"{name}, {size:,}"


async def measure_reads(
    bases: dict[int, Searched], results: SearchResults, measured: _Measure
) -> None:
    """Compare search with LIKE, many messages with few, and users with each other."""
    for size, base in bases.items():
        contests: dict[str, dict[str, Operation]] = {
            "LIKE": {OURS: base.search(COMMON), LIKE: base.like(COMMON)},
            "tiny": {"common": base.search(COMMON, TINY), "unused": base.search(UNUSED, TINY)},
            "preview": {
                "with": base.page(TWENTY, preview=True),
                "without": base.page(TWENTY, preview=False),
            },
        }
        if size > SMALL and SMALL in bases:
            for word in (COMMON, NEEDLE):
                contests[word] = {"large": base.search(word), "small": bases[SMALL].search(word)}
        for name, parties in contests.items():
            results.contests[at_size(name, size)] = await measured(parties)
        page = await base.catalog.search(FACT, limit=PAGE)
        if size > SMALL:
            results.figures["a fact of 400 sessions ago, found by us"] = len(page.hits)


async def measure_peers(
    server: Server, base: Searched, results: SearchResults, measured: _Measure
) -> None:
    """Compare search within an owner with google-adk's memory; ask agno for an old fact."""
    from .peers import ADKMemory, agno_finds

    memory = ADKMemory()
    url = await server.create("memory")
    try:
        await memory.open(url, base.corpus)
        for word in (COMMON, NEEDLE):
            results.contests[f"{ADK}, {word}"] = await measured(
                {OURS: base.search(word, THOUSAND), ADK: memory.search(word, THOUSAND)}
            )
    finally:
        await server.drop(url)
    chats = [chat for chat in base.corpus if chat.metadata["owner_id"] == THOUSAND]
    url = await server.create("agno")
    try:
        found = await agno_finds(url, chats, FACT)
        results.figures["a fact of 400 sessions ago, found by agno"] = float(found)
    finally:
        await server.drop(url)


async def measure_writes(
    indexed: Searched, plain: Searched, results: SearchResults, measured: _Measure
) -> None:
    """Compare writes with a text index with those of the SDK without one."""
    random_ = random.Random(2)

    def adding(session: SQLAlchemySession, words: int) -> Operation:
        return lambda _: session.add_items([item(sentence(random_, words))])  # type: ignore[list-item]  # a message

    for words in (10, 60):
        results.contests[f"add {words} words"] = await measured(
            {
                OURS: adding(indexed.catalog.session("writes"), words),
                SDK: adding(SQLAlchemySession("writes", engine=plain.engine), words),
            }
        )
