"""The baseline: one table of keys and JSON values, used as carefully as SQLAlchemy Core allows.

What an application would write for itself: `session_id`, `key` and the value's JSON as text, an
index on key and value, statements built once. It promises less: values compare as text, ranges
cast, a list's elements are found with LIKE, nothing is locked and nothing is checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    case,
    cast,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.types import TypeEngine

from agents_session_metadata import session_tables

NAME = "plain_metadata"


def create_all(connection: Connection) -> None:
    """Create the baseline's table, and beside it the SDK's as this package would make them."""
    base = session_tables()
    for table in (base.sessions, base.messages):
        table.create(connection)
    kind = connection.dialect.name
    if kind == "mysql":
        value: Text = mysql.TEXT(charset="utf8mb4", collation="utf8mb4_bin")
    else:
        value = Text(collation="C" if kind == "postgresql" else None)
    define(base.sessions, base.metadata.c.key.type, value).create(connection)


def define(sessions: Table, key: TypeEngine[str], value: Text) -> Table:
    """The baseline's table, with the types that go into CREATE TABLE or those for statements."""
    session_id = sessions.c.session_id
    now = text("CURRENT_TIMESTAMP")
    return Table(
        NAME,
        sessions.metadata,
        Column(
            "session_id",
            session_id.type,
            ForeignKey(session_id, ondelete="CASCADE"),
            primary_key=True,
        ),
        Column("key", key, primary_key=True),
        Column("value", value, nullable=False),
        Column("created_at", TIMESTAMP(timezone=False), server_default=now, nullable=False),
        Column("updated_at", TIMESTAMP(timezone=False), server_default=now, nullable=False),
        Index(f"{NAME}_key_value", "key", "value", mysql_length={"value": 255}),
    )


class PlainTable:
    """Metadata in a plain table beside the SDK's."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        kind = engine.dialect.name
        # Plain types: a collation would be compiled into the statements.
        self.sessions = sessions = Table(
            "agent_sessions",
            MetaData(),
            Column("session_id", String, primary_key=True),
            Column("created_at", TIMESTAMP(timezone=False)),
            Column("updated_at", TIMESTAMP(timezone=False)),
        )
        self.rows = rows = define(sessions, String(), Text())
        self._upsert = self._make_upsert(kind)
        own_id = sessions.c.session_id
        own = own_id == bindparam("id")
        # A read locks nothing on SQLite.
        touch = update(sessions).where(own).values(session_id=own_id)
        self._lock: Any = touch if kind == "sqlite" else select(own_id).where(own).with_for_update()
        mine = rows.c.session_id == bindparam("id")
        self._get = select(rows.c.key, rows.c.value).where(mine)

        def has(key: str, alias: Any) -> Any:
            return (alias.c.key == key) & (alias.c.value == bindparam(key))

        owner, other = rows.alias("owner"), rows.alias("other")
        newest = sessions.c.updated_at.desc(), sessions.c.session_id.desc()
        joined = owner.join(sessions, sessions.c.session_id == owner.c.session_id)
        both = joined.join(other, other.c.session_id == owner.c.session_id)
        ids = select(owner.c.session_id).where(has("owner_id", owner)).order_by(*newest)
        self._find_owner = ids.select_from(joined)
        self._find_owner_status = ids.select_from(both).where(has("status", other))
        number: Any = cast(other.c.value, mysql.DOUBLE() if kind == "mysql" else Integer)
        if kind == "postgresql":
            # A value that is no number would fail the cast; only CASE keeps them apart.
            number = case((other.c.key == "priority", number))
        self._find_owner_priority = ids.select_from(both).where(
            other.c.key == "priority", number >= bindparam("least")
        )
        tagged = rows.join(sessions, sessions.c.session_id == rows.c.session_id)
        has_tag = rows.c.key == "tags", rows.c.value.like(bindparam("pattern"))
        self._find_tag = (
            select(rows.c.session_id).select_from(tagged).where(*has_tag).order_by(*newest)
        )
        self._count_tag = select(func.count()).select_from(rows).where(*has_tag)
        self._count_owner = select(func.count()).select_from(owner).where(has("owner_id", owner))
        page = (
            ids.select_from(joined)
            .add_columns(sessions.c.created_at, sessions.c.updated_at)
            .limit(bindparam("most"))
            .subquery("page")
        )
        self._page = (
            select(page, rows.c.key, rows.c.value)
            .join_from(page, rows, rows.c.session_id == page.c.session_id)
            .order_by(page.c.updated_at.desc(), page.c.session_id.desc())
        )

    def _make_upsert(self, kind: str) -> Any:
        now = func.current_timestamp()
        if kind == "mysql":
            statement = mysql.insert(self.rows)
            replaced = {"value": statement.inserted.value, "updated_at": now}
            return statement.on_duplicate_key_update(replaced)
        insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[kind](self.rows)
        return insert.on_conflict_do_update(
            index_elements=["session_id", "key"],
            set_={"value": insert.excluded.value, "updated_at": now},
        )

    async def set(self, session_id: str, values: Mapping[str, Any], *, locks: bool = False) -> None:
        """Upsert keys in one statement. With `locks`, another one locks the session before."""
        rows = [
            {"session_id": session_id, "key": key, "value": json.dumps(value)}
            for key, value in values.items()
        ]
        async with self.engine.begin() as connection:
            if locks:
                await connection.execute(self._lock, {"id": session_id})
            await connection.execute(self._upsert, rows)

    async def get(self, session_id: str) -> dict[str, Any]:
        """Every key of a session."""
        found = await self._execute(self._get, id=session_id)
        return {key: json.loads(value) for key, value in found}

    async def find_owner(self, owner: str) -> list[str]:
        """An owner's sessions, newest first."""
        return await self._ids(self._find_owner, owner_id=json.dumps(owner))

    async def find_owner_status(self, owner: str, status: str) -> list[str]:
        """An owner's sessions with a status, newest first."""
        return await self._ids(
            self._find_owner_status, owner_id=json.dumps(owner), status=json.dumps(status)
        )

    async def find_owner_priority(self, owner: str, least: int) -> list[str]:
        """An owner's sessions of some priority at least, newest first."""
        return await self._ids(self._find_owner_priority, owner_id=json.dumps(owner), least=least)

    async def find_tag(self, tag: str, most: int | None = None) -> list[str]:
        """Sessions with a tag, newest first."""
        find = self._find_tag if most is None else self._find_tag.limit(most)
        return await self._ids(find, pattern=f"%{json.dumps(tag)}%")

    async def count_tag(self, tag: str) -> int:
        """The number of sessions with a tag."""
        return int((await self._execute(self._count_tag, pattern=f"%{json.dumps(tag)}%"))[0][0])

    async def count_owner(self, owner: str) -> int:
        """The number of an owner's sessions."""
        return int((await self._execute(self._count_owner, owner_id=json.dumps(owner)))[0][0])

    async def newest(self, owner: str, most: int) -> list[dict[str, Any]]:
        """The newest sessions of an owner with their metadata."""
        sessions: dict[str, dict[str, Any]] = {}
        for row in await self._execute(self._page, owner_id=json.dumps(owner), most=most):
            session_id, created, updated, key, value = row
            info = sessions.get(session_id)
            if info is None:
                info = sessions[session_id] = {
                    "session_id": session_id,
                    "created_at": created,
                    "updated_at": updated,
                    "metadata": {},
                }
            info["metadata"][key] = json.loads(value)
        return list(sessions.values())

    async def _ids(self, statement: Any, **parameters: Any) -> list[str]:
        return [row[0] for row in await self._execute(statement, **parameters)]

    async def _execute(self, statement: Any, **parameters: Any) -> Any:
        async with self.engine.connect() as connection:
            return (await connection.execute(statement, parameters)).all()
