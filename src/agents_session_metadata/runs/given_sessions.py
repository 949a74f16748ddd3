"""Sessions that callers pass, and the sessions inside their wrappers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import Connection, Table
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.dialects.urls import is_file_of, may_be_same
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.session import SQLAlchemyMetadataSession
from agents_session_metadata.text import quoted

_STORED = (SQLAlchemySession, SQLiteSession)
"""Sessions that show where they are stored, including those of this package."""


def underlying(session: Any) -> Iterator[Any]:
    """Yields a session and every session inside it, whatever attribute holds it."""
    seen: dict[int, Any] = {}
    waiting = [session]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen and callable(getattr(each, "add_items", None)):
            seen[id(each)] = each
            yield each
            waiting += _attributes(each)


def _attributes(wrapper: Any) -> Iterator[Any]:
    # Not `getattr`: a wrapper may forward it to the session inside.
    yield from getattr(wrapper, "__dict__", {}).values()
    for kind in type(wrapper).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            with suppress(AttributeError):
                yield object.__getattribute__(wrapper, name)


def is_encrypted(session: Any) -> bool:
    # Importing it would need the library that it encrypts with.
    module = sys.modules.get("agents.extensions.memory.encrypt_session")
    kind = getattr(module, "EncryptedSession", None)
    return kind is not None and any(isinstance(each, kind) for each in underlying(session))


def sessions_inside(session: Any, store: ScopedStore) -> list[SQLAlchemyMetadataSession]:
    """Returns the sessions of this package in the store's tables that are inside a session.

    Raises `ValueError` if all sessions found inside have another id or are in other tables.
    """
    stored = [each for each in underlying(session) if isinstance(each, _STORED)]
    found = [
        each for each in stored if each.session_id == session.session_id and _may_be_in(each, store)
    ]
    if stored and not found:
        raise _elsewhere(session)
    return [each for each in found if isinstance(each, SQLAlchemyMetadataSession)]


async def check_schema(session: Any, store: ScopedStore) -> None:
    """Raises `ValueError` if the session's engine finds the tables in another schema."""
    own, table = store.database.engine, store.database.tables.sessions
    engines = [each.engine for each in underlying(session) if isinstance(each, SQLAlchemySession)]

    def find(connection: Connection) -> str:
        default = connection.dialect.default_schema_name or ""
        quoted_default = f"{connection.dialect.identifier_preparer.quote(default)}."
        return store.database.dialect.schema_of(connection, table) or quoted_default

    async def found_by(engine: AsyncEngine) -> str:
        async with engine.connect() as connection:
            return await connection.run_sync(find)

    for engine in engines:
        if engine.pool is own.pool:
            # SQLite in memory has one connection, which may be in use.
            is_same = _translated(engine, table) == _translated(own, table)
        else:
            is_same = await found_by(engine) == await found_by(own)
        if not is_same:
            raise _elsewhere(session)


def _translated(engine: AsyncEngine, table: Table) -> str | None:
    schemas = engine.get_execution_options().get("schema_translate_map") or {}
    return schemas.get(table.schema, table.schema)


def _elsewhere(session: Any) -> ValueError:
    return ValueError(
        f"session {quoted(session.session_id)} is in another database, schema or tables than the "
        "catalog of the paused runs, or is wrapped around a session with another id"
    )


def _may_be_in(session: SQLAlchemySession | SQLiteSession, store: ScopedStore) -> bool:
    """Returns True if in doubt, because one server can have several addresses."""
    names, engine = store.database.names, store.database.engine
    if isinstance(session, SQLAlchemyMetadataSession) and session._store.database.names != names:
        return False
    if isinstance(session, SQLiteSession):
        tables = {session.sessions_table, session.messages_table}
        same_database = is_file_of(engine.url, str(session.db_path))
    else:
        tables = {each.name for each in vars(session).values() if isinstance(each, Table)}
        same_database = session.engine.sync_engine is engine.sync_engine or may_be_same(
            session.engine.url, engine.url
        )
    return same_database and {names.sessions, names.messages} <= tables
