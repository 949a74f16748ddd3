"""PgBouncer in transaction mode, in front of PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import re
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from agents import set_tracing_disabled
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import SessionRuns
from conformance.following import Client, plain, speaking, until
from servers import PostgreSQL, free_port

from .audit import audit
from .databases import create_database, program, version
from .journal import Journal
from .load import Load, open_catalog, prepare
from .results import Result

SECONDS = 8.0
SERVER_CONNECTIONS = 3
"""Fewer than clients, so that each meets what others left on a connection."""

ASYNCPG: Mapping[str, Any] = {
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
    "prepared_statement_name_func": lambda: f"__asyncpg_{uuid.uuid4()}__",
}
PSYCOPG: Mapping[str, Any] = {"prepare_threshold": None}
"""What a user gives as `connect_args`."""

ENGINES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "asyncpg": ("postgresql+asyncpg", {"connect_args": ASYNCPG}),
    "asyncpg, AUTOCOMMIT": (
        "postgresql+asyncpg",
        {"connect_args": ASYNCPG, "isolation_level": "AUTOCOMMIT"},
    ),
    "psycopg": ("postgresql+psycopg", {"connect_args": PSYCOPG}),
}


async def pool_transactions() -> AsyncIterator[Result]:
    """Use the package behind PgBouncer."""
    server = PostgreSQL()
    try:
        for name, (driver, options) in ENGINES.items():
            url = await create_database(server.url)
            async with _pgbouncer(url) as (pooled, number):
                await prepare(url)
                engine = create_async_engine(pooled.set(drivername=driver), pool_size=8, **options)
                journal = Journal()
                load = Load(journal, [engine], writers=6)
                reads, _ = await asyncio.gather(_read(engine, SECONDS), load.run(SECONDS))
                figures = await audit(engine, journal)
                server_name = f"{await version(engine)}, PgBouncer {number}"
                result = Result(f"PgBouncer, transaction mode, {name}", server_name, figures)
                result.notes.append(f"{reads} reads")
                result.require(not journal.errors, "no errors")
                await _work_in_background(engine, result)
                await engine.dispose()
                yield result
    finally:
        server.stop()


async def _work_in_background(engine: AsyncEngine, result: Result) -> None:
    """Begin and follow runs, stop some of them, and recover the others."""
    set_tracing_disabled(True)
    own, other = (SessionRuns(open_catalog(engine, create_tables=True)) for _ in range(2))
    whole = " ".join(map(str, range(60)))
    agent = speaking([whole], pause=0.1)

    async def begin(session_id: str) -> tuple[Client, asyncio.Task[Client]]:
        await own.start(session_id, agent, "Count", key="k")
        client = Client()
        task = asyncio.ensure_future(client.follow(other, session_id))
        await until(lambda: client.text)
        return client, task

    names = [f"background {number}" for number in range(SERVER_CONNECTIONS * 3)]
    begun = await asyncio.gather(*map(begin, names))
    stopped = names[::3]
    found = await asyncio.gather(*map(other.cancel, stopped))
    result.require(all(found), "runs are stopped")
    await own.aclose(wait=0)
    recovered = await other.recover(lambda _: agent)
    await asyncio.gather(*(task for _, task in begun))
    await other.aclose()
    for (client, _), name in zip(begun, names, strict=True):
        items = plain(await other.catalog.session(name).get_items())
        status = "cancelled" if name in stopped else "finished"
        result.require(client.status is not None and client.status["status"] == status, status)
        result.require(client.shown == items, "followers see the history")
        text = dict(items)["assistant"]
        is_kept = whole.startswith(text) if name in stopped else text == whole
        result.require(is_kept, "answers are whole, or the beginning")
    result.notes.append(f"{len(names)} background runs, {recovered} recovered")
    result.require(recovered == len(names) - len(stopped), "runs are recovered")


async def _read(engine: AsyncEngine, seconds: float) -> int:
    """List, find, count and read history, while others write."""
    catalog = open_catalog(engine)
    end = asyncio.get_running_loop().time() + seconds

    async def read() -> int:
        done = 0
        while asyncio.get_running_loop().time() < end:
            page = await catalog.list_sessions({"tags": {"$contains": "tags"}}, limit=20)
            for info in page.sessions:
                assert info.metadata["tags"] == [info.metadata["a"], "tags"]
            if page.next_cursor:
                where = {"tags": {"$contains": "tags"}}
                await catalog.list_sessions(where, limit=20, cursor=page.next_cursor)
            await catalog.count_sessions({"a": {"$exists": True}})
            await catalog.count_values("tags", limit=3)
            await catalog.session("history 1").get_items(limit=4)
            done += 5
        return done

    return sum(await asyncio.gather(*[read() for _ in range(3)]))


@contextlib.asynccontextmanager
async def _pgbouncer(url: URL) -> AsyncIterator[tuple[URL, str]]:
    """PgBouncer in front of a server; gives its URL and its version."""
    pgbouncer = program("pgbouncer")
    told = subprocess.run([pgbouncer, "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"[0-9.]+", told.stdout)
    assert found is not None, told.stdout
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as directory:
        config = Path(directory) / "pgbouncer.ini"
        config.write_text(
            "[databases]\n"
            f"* = host={url.query['host']} port=5432 user=postgres\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\nmax_client_conn = 200\n"
            f"default_pool_size = {SERVER_CONNECTIONS}\n"
        )
        command = [pgbouncer, str(config)]
        if os.geteuid() == 0:
            # It refuses to be root. The server's socket is its user's own.
            user = pwd.getpwuid(Path(str(url.query["host"])).stat().st_uid).pw_name
            Path(directory).chmod(0o755)
            command[1:1] = ["-u", user]
        with (Path(directory) / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            await _wait(port, process, Path(directory) / "log")
            yield url.set(host="127.0.0.1", port=port, query={}), found[0]
        finally:
            process.terminate()
            process.wait()


async def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            return
        await asyncio.sleep(0.05)
    raise AssertionError(log.read_text())
