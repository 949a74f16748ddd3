"""What somebody with a database prompt, or with the plain SDK, sees and does."""

from __future__ import annotations

import re
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from servers import ignored_warnings
from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

Item = dict[str, Any]

# The SDK cannot create its tables on MySQL: this is what its users type there.
SDK_TABLES_ON_MYSQL = """
CREATE TABLE agent_sessions (
    session_id VARCHAR({length}) CHARACTER SET {charset} COLLATE {collation} NOT NULL PRIMARY KEY,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE agent_messages (
    id INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY,
    session_id VARCHAR({length}) CHARACTER SET {charset} COLLATE {collation} NOT NULL,
    message_data LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    INDEX idx_agent_messages_session_time (session_id, created_at),
    FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
)
"""


def message(content: str, role: str = "user") -> Item:
    return {"role": role, "content": content}


async def execute(engine: AsyncEngine, statement: str, **parameters: Any) -> list[Any]:
    """Run one statement in a transaction of its own; rows if it gives any."""
    async with engine.begin() as connection:
        result = await connection.execute(text(statement), parameters)
        return list(result.all()) if result.returns_rows else []


async def other_connections(engine: AsyncEngine) -> list[int]:
    """The numbers of the other connections to the same database, on a server."""
    if engine.dialect.name == "postgresql":
        query = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return [pid for (pid,) in await execute(engine, query)]
    if engine.dialect.name != "mysql":
        return []
    # MySQL has deprecated this, and MariaDB lacks what replaces it.
    async with engine.connect() as connection:
        own, database = (await connection.execute(text("SELECT connection_id(), database()"))).one()
        with ignored_warnings():
            shown = await connection.execute(text("SHOW PROCESSLIST"))
        return [row[0] for row in shown if row[3] == database and row[0] != own]


async def table_names(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


async def count_rows(engine: AsyncEngine, table: str, session_id: str | None = None) -> int:
    """Rows of one table, all of them or those of one session."""
    quoted = engine.dialect.identifier_preparer.quote(table)
    if session_id is None:
        return (await execute(engine, f"SELECT count(*) FROM {quoted}"))[0][0]
    statement = f"SELECT count(*) FROM {quoted} WHERE session_id = :session_id"
    return (await execute(engine, statement, session_id=session_id))[0][0]


async def metadata_rows(engine: AsyncEngine, prefix: str = "agent_sessions_metadata") -> int:
    """Rows in all tables of the package together."""
    names = [name for name in await table_names(engine) if name.startswith(prefix)]
    assert names, f"no table begins with {prefix}"
    return sum([await count_rows(engine, name) for name in names])


async def drop_foreign_keys(engine: AsyncEngine, table: str) -> None:
    """Drop the foreign keys of a table, where the database enforces any."""
    if engine.dialect.name == "sqlite":
        return
    async with engine.begin() as connection:
        found = await connection.run_sync(lambda sync: inspect(sync).get_foreign_keys(table))
        for key in found:
            await connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {key['name']}"))


async def create_loose_collation(engine: AsyncEngine, name: str) -> None:
    """Create a collation of PostgreSQL that its catalogue calls nondeterministic.

    Only ICU makes such a collation, and the private server has none.
    """
    await execute(engine, f'CREATE COLLATION {name} FROM "POSIX"')
    await execute(
        engine, f"UPDATE pg_collation SET collisdeterministic = false WHERE collname = '{name}'"
    )


async def set_times(
    engine: AsyncEngine,
    session_id: str,
    *,
    created_at: str = "2020-01-01 00:00:00",
    updated_at: str = "2020-02-02 00:00:00",
) -> None:
    await execute(
        engine,
        f"UPDATE agent_sessions SET created_at = '{created_at}', updated_at = '{updated_at}'"
        " WHERE session_id = :session_id",
        session_id=session_id,
    )


async def times(engine: AsyncEngine, session_id: str) -> tuple[str, str]:
    """Both timestamps of a session as the database holds them."""
    rows = await execute(
        engine,
        "SELECT created_at, updated_at FROM agent_sessions WHERE session_id = :session_id",
        session_id=session_id,
    )
    return str(rows[0][0]), str(rows[0][1])


async def create_sdk_tables(
    engine: AsyncEngine,
    *,
    length: int = 190,
    charset: str = "utf8mb4",
    collation: str = "utf8mb4_bin",
) -> None:
    """The SDK's own two tables and nothing else, as its users have them."""
    if engine.dialect.name not in ("mysql", "mariadb"):
        await SQLAlchemySession("anyone", engine=engine, create_tables=True).get_items()
        return
    for statement in SDK_TABLES_ON_MYSQL.split(";"):
        await execute(engine, statement.format(length=length, charset=charset, collation=collation))


async def refuse_session(engine: AsyncEngine, session_id: str) -> None:
    """Let the database refuse to insert one session, with an error that is not a duplicate."""
    check = "ALTER TABLE agent_sessions ADD CHECK"
    statements = {
        "sqlite": "CREATE TRIGGER refuse AFTER INSERT ON agent_sessions"
        f" WHEN NEW.session_id = '{session_id}' BEGIN SELECT json('{{'); END",
        "postgresql": f"{check} (1 / (session_id <> '{session_id}')::int = 1)",
    }
    on_mysql = f"{check} (session_id <> '{session_id}')"
    await execute(engine, statements.get(engine.dialect.name, on_mysql))


async def alter_on_sqlite(engine, table: str, old: str, new: str) -> None:
    """Make a table again with another definition; its triggers stay."""
    [[made]] = await execute(
        engine, f"SELECT sql FROM sqlite_master WHERE name = '{table}' AND type = 'table'"
    )
    triggers = await execute(
        engine, f"SELECT sql FROM sqlite_master WHERE tbl_name = '{table}' AND type = 'trigger'"
    )
    changed = re.sub(old, new, made, count=1, flags=re.DOTALL)
    assert changed != made
    for statement in (f"DROP TABLE {table}", changed, *(sql for [sql] in triggers)):
        await execute(engine, statement)
