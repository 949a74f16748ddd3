"""Loading: a corpus into the tables of this package, and into the baseline's, by bulk statements.

A million sessions would take hours through `set_metadata`. The rows are made by the package's own
encoder, and `check_loaded` compares some with what `set_metadata` writes. Secondary indexes are
built afterwards. What a server keeps statistics of is analysed; SQLite, which nobody analyses, is
not.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Table, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agents_session_metadata import MetadataLimits, SessionCatalog, session_tables
from agents_session_metadata.values import EncodedValue, encode_metadata

from . import plain_eav
from .data import Corpus, Session, message

_BATCH = 20_000
_LIMITS = MetadataLimits()


class Target(NamedTuple):
    """A table to fill: its columns, and its rows for one session."""

    table: str
    columns: Sequence[str]
    rows: Callable[[Session], Iterable[tuple[Any, ...]]]


async def load_ours(engine: AsyncEngine, corpus: Corpus) -> None:
    """Create this package's tables and fill them."""
    await SessionCatalog(engine, create_tables=True).count_sessions()
    tables, rows = session_tables(), _Rows()
    targets = [
        *_base_targets(engine, corpus),
        Target(
            tables.metadata.name,
            ["session_id", "key", "value", "search_key", "search_rest"],
            rows.of_metadata,
        ),
        Target(
            tables.elements.name,
            ["session_id", "key", "position", "search_key", "search_rest"],
            rows.of_elements,
        ),
    ]
    await _load(engine, corpus, targets, [tables.metadata, tables.elements])
    await check_loaded(engine, corpus)


async def load_plain(engine: AsyncEngine, corpus: Corpus) -> None:
    """Create the baseline's table, with the SDK's beside it, and fill them."""
    async with engine.begin() as connection:
        await connection.run_sync(plain_eav.create_all)
    targets = [
        *_base_targets(engine, corpus),
        Target(plain_eav.NAME, ["session_id", "key", "value"], _plain_rows),
    ]
    await _load(engine, corpus, targets, [plain_eav.PlainEAV(engine).rows])


async def check_loaded(engine: AsyncEngine, corpus: Corpus) -> None:
    """Make sure that the rows are those that `set_metadata` writes.

    Raises:
        AssertionError: If they differ.
    """
    catalog = SessionCatalog(engine)
    tables = session_tables()
    for session in corpus.sample[:5]:
        written = f"check-{session.session_id}"
        await catalog.set_metadata(written, session.metadata)
        async with engine.connect() as connection:
            for table in (tables.metadata, tables.elements):
                columns = [
                    column
                    for column in table.c
                    if column.name not in {"session_id", "created_at", "updated_at"}
                ]
                loaded, reference = [
                    [
                        tuple(row)
                        for row in await connection.execute(
                            select(*columns)
                            .where(table.c.session_id == session_id)
                            .order_by(*table.primary_key.columns)
                        )
                    ]
                    for session_id in (session.session_id, written)
                ]
                assert loaded, f"nothing was loaded into {table.name}"
                assert loaded == reference, f"{table.name} was not loaded as it is written"
        assert await catalog.delete_session(written)


def _base_targets(engine: AsyncEngine, corpus: Corpus) -> list[Target]:
    # The clock of SQLite and MariaDB ticks in whole seconds; SQLite keeps the text of it.
    stored: Callable[[datetime], Any] = {
        "sqlite": lambda time: time.strftime("%Y-%m-%d %H:%M:%S"),
    }.get(engine.dialect.name, lambda time: time.replace(tzinfo=None))
    targets = [
        Target(
            "agent_sessions",
            ["session_id", "created_at", "updated_at"],
            lambda session: [
                (session.session_id, stored(session.created_at), stored(session.updated_at))
            ],
        )
    ]
    if corpus.messages:
        items = [json.dumps(message(number)) for number in range(corpus.messages)]
        targets.append(
            Target(
                "agent_messages",
                ["session_id", "message_data"],
                lambda session: [(session.session_id, item) for item in items],
            )
        )
    return targets


class _Rows:
    """The rows of this package's tables. A session is encoded once for both of them."""

    def __init__(self) -> None:
        self._encoded: dict[str, dict[str, EncodedValue]] = {}

    def of_metadata(self, session: Session) -> Iterator[tuple[Any, ...]]:
        for key, value in self._encode(session).items():
            yield session.session_id, key, value.text, value.search.indexed, value.search.rest

    def of_elements(self, session: Session) -> Iterator[tuple[Any, ...]]:
        for key, value in self._encode(session).items():
            for position, element in enumerate(value.elements):
                yield session.session_id, key, position, element.indexed, element.rest

    def _encode(self, session: Session) -> dict[str, EncodedValue]:
        encoded = self._encoded.get(session.session_id)
        if encoded is None:
            if len(self._encoded) >= _BATCH:
                self._encoded.clear()
            encoded = encode_metadata(session.metadata, _LIMITS)
            self._encoded[session.session_id] = encoded
        return encoded


def _plain_rows(session: Session) -> Iterator[tuple[Any, ...]]:
    for key, value in sorted(session.metadata.items()):
        yield session.session_id, key, json.dumps(value)


async def _load(
    engine: AsyncEngine, corpus: Corpus, targets: Sequence[Target], indexed: Sequence[Table]
) -> None:
    kind = engine.dialect.name
    indexes = [index for table in indexed for index in table.indexes]
    fill = {"sqlite": _fill_sqlite, "postgresql": _fill_postgresql, "mysql": _fill_mysql}[kind]
    # MariaDB keeps a table in the order of its key, whatever order it is filled in.
    sessions: Iterable[Session] = sorted(corpus) if kind == "mysql" else corpus
    for index in indexes:
        async with engine.begin() as connection:
            await connection.run_sync(index.drop)
    await fill(engine, sessions, targets)
    for index in indexes:
        async with engine.begin() as connection:
            await connection.run_sync(index.create)
    await analyze(engine, [target.table for target in targets])


async def analyze(engine: AsyncEngine, names: Sequence[str]) -> None:
    """Let a server that keeps statistics gather those of some tables."""
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        if engine.dialect.name == "postgresql":
            for name in names:
                await connection.execute(text(f"VACUUM (ANALYZE) {name}"))
            await connection.execute(text("CHECKPOINT"))
        elif engine.dialect.name == "mysql":
            await connection.execute(text(f"ANALYZE TABLE {', '.join(names)}"))
    await engine.dispose()


async def _fill_sqlite(
    engine: AsyncEngine, sessions: Iterable[Session], targets: Sequence[Target]
) -> None:
    await engine.dispose()
    connection = sqlite3.connect(engine.url.database or "")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -1000000")
    for batch in _batches(sessions):
        for target in targets:
            connection.executemany(_insert(target, "?"), _rows(target, batch))
        connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def _fill_postgresql(
    engine: AsyncEngine, sessions: Iterable[Session], targets: Sequence[Target]
) -> None:
    async with engine.connect() as connection:
        driver = await _driver_connection(connection)
        for batch in _batches(sessions):
            for target in targets:
                await driver.copy_records_to_table(
                    target.table, records=_rows(target, batch), columns=target.columns
                )


async def _fill_mysql(
    engine: AsyncEngine, sessions: Iterable[Session], targets: Sequence[Target]
) -> None:
    async with engine.connect() as connection:
        driver = await _driver_connection(connection)
        async with driver.cursor() as cursor:
            await cursor.execute("SET foreign_key_checks = 0, unique_checks = 0")
            for batch in _batches(sessions):
                for target in targets:
                    await cursor.executemany(_insert(target, "%s"), list(_rows(target, batch)))
                await driver.commit()
            await cursor.execute("SET foreign_key_checks = 1, unique_checks = 1")


async def _driver_connection(connection: AsyncConnection) -> Any:
    return (await connection.get_raw_connection()).driver_connection


def _batches(sessions: Iterable[Session]) -> Iterator[list[Session]]:
    remaining = iter(sessions)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _rows(target: Target, batch: Iterable[Session]) -> Iterator[tuple[Any, ...]]:
    return (row for session in batch for row in target.rows(session))


def _insert(target: Target, mark: str) -> str:
    columns = ", ".join("`key`" if name == "key" else name for name in target.columns)
    marks = ", ".join(mark for _ in target.columns)
    return f"INSERT INTO {target.table} ({columns}) VALUES ({marks})"
