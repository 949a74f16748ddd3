"""The indexes of metadata keys that version 0.2.0 created, as SQL typed at a prompt."""

from __future__ import annotations

from pathlib import Path

from servers import ignored_warnings
from sqlalchemy.ext.asyncio import AsyncEngine

_ENTRIES = (
    "INSERT INTO agent_sessions_metadata_activity SELECT m.session_id, m.{key}, -1, 0,"
    " m.search_key, {time} FROM agent_sessions_metadata m JOIN agent_sessions s"
    " ON s.session_id = m.session_id WHERE m.{key} IN ({keys})"
)


async def create(engine: AsyncEngine, *keys: str) -> None:
    """Creates the tables and triggers, and fills the indexes of some keys."""
    kind = engine.dialect.name
    script = (Path(__file__).parent / f"{kind}.sql").read_text()
    is_mariadb = getattr(engine.dialect, "is_mariadb", False)
    quote = engine.dialect.identifier_preparer.quote
    time = "unix_timestamp(s.updated_at)" if kind == "mysql" else "s.updated_at"
    statements = [
        *script.strip().split("\n\n"),
        *(
            f"INSERT INTO agent_sessions_metadata_indexes VALUES ('{key}', 1, 'token')"
            for key in keys
        ),
        _ENTRIES.format(key=quote("key"), time=time, keys=", ".join(f"'{key}'" for key in keys)),
    ]
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    async with engine.begin() as connection:
        with ignored_warnings():
            for statement in statements:
                await connection.exec_driver_sql(statement.replace("{collation}", collation))


async def triggers(engine: AsyncEngine) -> list[tuple[str, str]]:
    """The names of all triggers, with what creates them on SQLite, and otherwise their tables."""
    query = {
        "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": (
            "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal"
        ),
        "mysql": (
            "SELECT trigger_name, event_object_table FROM information_schema.triggers"
            " WHERE trigger_schema = database()"
        ),
    }[engine.dialect.name]
    async with engine.connect() as connection:
        return [(row[0], row[1]) for row in await connection.exec_driver_sql(query)]
