"""Empty databases on the servers of a fault, and what the servers call themselves."""

from __future__ import annotations

import shutil
import uuid

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool


def program(name: str) -> str:
    """The path of a server's program, which may be for administrators only.

    Raises:
        SystemExit: If it is not installed.
    """
    found = shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
    if found is None:
        raise SystemExit(f"{name} is not installed: .ci/nightly installs it from Debian's packages")
    return found


def mariadbd() -> str:
    """The path of MariaDB's server."""
    return program("mariadbd")


async def administer(server: URL, *statements: str) -> None:
    """Run statements as the server's administrator, each by itself."""
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def create_database(server: URL) -> URL:
    """Make an empty database and give its URL."""
    name = f"stress_{uuid.uuid4().hex[:8]}"
    await administer(server, f"CREATE DATABASE {name}")
    return server.set(database=name)


async def version(engine: AsyncEngine) -> str:
    """The server's name and version."""
    name = engine.dialect.name
    statement = {
        "sqlite": "SELECT sqlite_version()",
        "postgresql": "SHOW server_version",
    }.get(name, "SELECT version()")
    async with engine.connect() as connection:
        number = str((await connection.execute(text(statement))).scalar_one())
    title = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}.get(name, "MySQL")
    if "MariaDB" in number:
        title = "MariaDB"
    return f"{title} {number.split('-', maxsplit=1)[0].split(maxsplit=1)[0]}"
