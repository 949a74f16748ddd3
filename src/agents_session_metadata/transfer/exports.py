"""Exports sessions as JSON records, and imports records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, delete, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from agents_session_metadata.core.change_log import note
from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import CORE
from agents_session_metadata.core.features import features, in_use
from agents_session_metadata.core.messages import in_order
from agents_session_metadata.core.rows import delete_sessions, elements_of, lock_sessions, rows_of
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._locks import ROUNDS
from agents_session_metadata.dialects.codes import packet_advice
from agents_session_metadata.errors import (
    SessionExistsError,
    SessionMetadataError,
    SessionNotFoundError,
    invalid_record,
)
from agents_session_metadata.keys import RUN
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import WALK, SessionPosition
from agents_session_metadata.query.pages import FoundSession, Reader
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.values import EncodedValue, check_id, finite, is_text

OnConflict: TypeAlias = Literal["error", "skip", "replace"]
"""What an import does if a session exists: raise, skip the record, or replace the session."""

EXPORTED = 100
"""The number of sessions that are read in one transaction."""
_BATCH = 250
"""The maximum number of sessions that are written in one transaction. The first has one."""
_BATCH_SIZE = 2**21
"""Characters of history and metadata after which a batch is written."""


def read_records(
    store: ScopedStore, condition: Condition, after: SessionPosition | None, connection: Connection
) -> tuple[list[FoundSession], list[dict[str, Any]]]:
    database = store.database
    found = Reader(database, connection).page(condition, WALK, limit=EXPORTED, after=after)
    ids = [each.info.session_id for each in found]
    histories = _read_histories(database, connection, ids)
    records: list[dict[str, Any]] = [
        {
            "format": 1,
            "session_id": each.info.session_id,
            "created_at": each.info.created_at.isoformat(),
            "updated_at": each.info.updated_at.isoformat(),
            "metadata": _without_run(each.info.metadata),
            "items": histories.get(each.info.session_id, []),
        }
        for each in found
    ]
    for feature in in_use(database, connection) if ids else ():
        parts = feature.export(database, connection, ids)
        for record in records:
            if record["session_id"] in parts:
                record[str(feature.field)] = parts[record["session_id"]]
    return found, records


def _without_run(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """No record carries a run."""
    return {key: value for key, value in metadata.items() if key != RUN}


def _read_histories(
    database: Database, connection: Connection, ids: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    # The sessions' own ids: on MySQL, a message can have its id in another case.
    sessions, messages = database.tables.sessions, database.tables.messages
    own_id, moment = sessions.c.session_id, database.dialect.moment
    statement = (
        select(own_id, moment.of(messages.c.created_at), messages.c.message_data)
        .join_from(sessions, messages, own_id == messages.c.session_id)
        .where(own_id.in_(ids))
        .order_by(own_id, *in_order(messages))
    )
    found: Any = connection.execute(statement).all()
    return {
        session_id: [_dump_item(at, text) for _, at, text in rows]
        for session_id, rows in groupby(found, itemgetter(0))
    }


def _dump_item(created_at: datetime, text: str) -> dict[str, Any]:
    # The SDK skips rows that are not JSON; a copy of the database keeps them.
    try:
        item = {"item": json.loads(text, parse_constant=finite, parse_float=finite)}
    except ValueError:
        item = {"text": text}
    return {"created_at": created_at.astimezone(timezone.utc).isoformat(), **item}


# ---- importing ----


@dataclass(frozen=True)
class NewSession:
    """A session to write, with times as the database stores them."""

    session_id: str
    created_at: Any
    updated_at: Any
    metadata: Mapping[str, EncodedValue]
    items: Sequence[tuple[Any, str]]
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The parts of features, by their names."""

    @property
    def size(self) -> int:
        return (
            sum(len(text) for _, text in self.items)
            + sum(len(value.text) for value in self.metadata.values())
            + sum(len(str(item)) for part in self.parts.values() for item in part)
        )


@dataclass
class Import:
    """Writes records, many in one transaction, as if each had one of its own.

    `on_invalid` is called with the error of each record that cannot be written, which is then
    skipped; without it, the error is raised. `progress` is called after each transaction with the
    number of records done.
    """

    store: ScopedStore
    on_conflict: OnConflict
    ensure_ascii: bool
    on_invalid: Callable[[Exception], object] | None
    progress: Callable[[int], object] | None
    written: int = 0
    _batch: dict[str, tuple[int, NewSession]] = field(default_factory=dict)
    _size: int = 0
    _limit: int = 1

    async def run(
        self, records: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]
    ) -> int:
        position = 0
        try:
            async for record in _each(records):
                position += 1
                try:
                    session = self._parse(record)
                except (SessionMetadataError, ValueError) as error:
                    self._refuse(position, error)
                    continue
                if session.session_id in self._batch:
                    await self._flush()
                self._batch[session.session_id] = (position, session)
                self._size += session.size
                if len(self._batch) >= self._limit or self._size >= _BATCH_SIZE:
                    await self._flush()
                    self._limit = min(_BATCH, max(1, position // 4))
                    if self.progress is not None:
                        self.progress(position)
        except Exception:
            # Records before the one that failed are in, whatever failed.
            await self._flush()
            raise
        await self._flush()
        if self.progress is not None:
            self.progress(position)
        return self.written

    async def _flush(self) -> None:
        batch, self._batch, self._size = list(self._batch.values()), {}, 0
        if not batch:
            return
        for name in {CORE, *(name for _, session in batch for name in session.parts)}:
            await self.store.database.ensure(name)
        await self._store(batch)

    async def _store(self, batch: list[tuple[int, NewSession]], rounds: int = ROUNDS) -> None:
        """Writes a batch, or each record alone if that fails: then none of the batch is in."""
        try:
            self.written += await self._write([session for _, session in batch])
        except (SessionMetadataError, DBAPIError) as error:
            # The outcome of a commit, which has no statement, may be unknown.
            is_known = not isinstance(error, DBAPIError) or error.statement is not None
            if len(batch) > 1 and is_known:
                for each in batch:
                    await self._store([each])
            elif isinstance(error, SessionMetadataError):
                self._refuse(batch[0][0], error)
            elif isinstance(error, IntegrityError) and is_known and rounds > 1:
                # Others create or delete the session at the same time.
                await self._store(batch, rounds - 1)
            else:
                self._tell_place(batch[0][0], error)
                raise

    async def _write(self, sessions: list[NewSession]) -> int:
        store, database = self.store, self.store.database
        # Every writer locks rows in the order of their ids.
        sessions = sorted(sessions, key=attrgetter("session_id"))
        ids = [session.session_id for session in sessions]

        def write(connection: Connection) -> int:
            stored = lock_sessions(database, connection, ids)
            if len(ids) > 1 and not stored.issubset(ids):
                # Each is written alone: it is not known which of them is stored in another case.
                raise SessionExistsError(min(stored.difference(ids)))
            existing = (stored.intersection(ids) or set(ids)) if stored else set()
            if existing and self.on_conflict == "error":
                raise SessionExistsError(min(existing))
            if existing and self.on_conflict == "replace":
                for session_id in sorted(existing):
                    if not store.admits(connection, session_id):
                        raise SessionNotFoundError(session_id)
                delete_sessions(database, connection, sorted(stored))
                existing = set()
            new = []
            for session in sessions:
                if session.session_id in existing:
                    continue
                if store.admits_new(connection, session.session_id):
                    new.append(session)
                elif self.on_conflict != "skip":
                    raise SessionExistsError(session.session_id)
            if not new:
                return 0
            _insert_sessions(database, connection, new)
            for feature in features():
                parts = {each.session_id: each.parts.get(feature.name) for each in new}
                if any(parts.values()):
                    feature.load(database, connection, parts)
            for feature in in_use(database, connection):
                feature.added(database, connection, [each.session_id for each in new])
            return len(new)

        return await database.write(write)

    def _parse(self, record: object) -> NewSession:
        from .records import parse_record  # pydantic takes long to import

        parsed, parts = parse_record(record)
        metadata = self.store.encode_new(_without_run(parsed.metadata))
        check_id(parsed.session_id)
        items = []
        for index, item in enumerate(parsed.items):
            path = f"$.items[{index}]"
            text = item.stored_text(path, ensure_ascii=self.ensure_ascii)
            if not is_text(text):
                raise invalid_record(path, "must not contain lone surrogates or NUL")
            items.append((self._time(item.created_at, f"{path}.created_at"), text))
        return NewSession(
            parsed.session_id,
            self._time(parsed.created_at, "$.created_at"),
            self._time(parsed.updated_at, "$.updated_at"),
            metadata,
            items,
            parts,
        )

    def _time(self, moment: datetime, path: str) -> Any:
        try:
            return self.store.database.dialect.time_to_store(moment.astimezone(timezone.utc))
        except (OverflowError, ValueError) as error:
            raise invalid_record(path, str(error)) from None

    def _refuse(self, position: int, error: SessionMetadataError | ValueError) -> None:
        error.args = (f"record {position} (index {position - 1}): {error}",)
        if self.on_invalid is None:
            raise error
        self.on_invalid(error)

    def _tell_place(self, position: int, error: DBAPIError) -> None:
        place = f"the import stopped at record {position} (index {position - 1})"
        before = "the records before it are imported" if position > 1 else ""
        error.add_detail("; ".join(filter(None, [place, before, packet_advice(error)])))


async def _each(
    records: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
) -> AsyncIterator[Mapping[str, Any]]:
    if isinstance(records, AsyncIterable):
        async for record in records:
            yield record
    else:
        for record in records:
            yield record


def _insert_sessions(database: Database, connection: Connection, new: Sequence[NewSession]) -> None:
    """Inserts sessions, and deletes metadata that earlier sessions with their ids have left.

    Raises IntegrityError if a session exists.
    """
    tables, dialect = database.tables, database.dialect
    dialect.discard_plans(connection)
    columns = "session_id", "created_at", "updated_at"
    own = [{name: getattr(each, name) for name in columns} for each in new]
    dialect.insert_rows(connection, tables.sessions, own)
    for each in new:
        note(connection, "created", each.session_id)
        if each.metadata:
            note(connection, "set", each.session_id, each.metadata)
    _delete_leftovers(connection, tables, [each.session_id for each in new])
    metadata = [row for each in new for row in rows_of(each.session_id, each.metadata)]
    dialect.insert_rows(connection, tables.metadata, metadata)
    elements = [row for each in new for row in elements_of(each.session_id, each.metadata)]
    dialect.insert_rows(connection, tables.elements, elements)
    items = [
        {"session_id": each.session_id, "message_data": text, "created_at": at}
        for each in new
        for at, text in each.items
    ]
    dialect.insert_rows(connection, tables.messages, items)


def _delete_leftovers(connection: Connection, tables: SessionTables, ids: Sequence[str]) -> None:
    own_id, metadata = tables.sessions.c.session_id, tables.metadata.c
    # For a join, PostgreSQL would read all rows of a table without statistics.
    first: Any = select(metadata.key).where(metadata.session_id == own_id).limit(1)
    looking = select(first.scalar_subquery()).where(own_id.in_(ids))
    # On MySQL, a DELETE that matches no rows locks the gaps between rows.
    if any(connection.scalars(looking)):
        for table in (tables.elements, tables.metadata):
            connection.execute(delete(table).where(table.c.session_id.in_(ids)))
