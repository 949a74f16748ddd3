"""A Galera cluster of three MariaDB nodes, one of which is killed under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from sqlalchemy import URL, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from servers import MariaDB, free_port

from .audit import audit
from .databases import create_database, mariadbd, version
from .journal import Journal
from .load import Load, prepare
from .results import Figures, Result

NODES = 3
BEFORE, WITHOUT, AFTER = 6.0, 5.0, 4.0
"""Seconds of load: with all nodes, with one that is dead, and with that one back."""

_PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")


async def kill_galera_node() -> AsyncIterator[Result]:
    """Kill a node under load, let it join again, and ask every node what it has."""
    nodes: list[MariaDB] = []
    try:
        await asyncio.to_thread(_start, nodes)
        url = await create_database(nodes[0].url)
        await prepare(url)
        engines = [_engine(node, url) for node in nodes]
        for engine in engines:
            await _synced(engine)
        journal = Journal()
        load = Load(journal, engines, writers=2 * NODES)
        work = asyncio.create_task(load.run(120))
        await asyncio.sleep(BEFORE)
        dead = nodes[1]
        await asyncio.to_thread(dead.kill)
        killed = len(journal.acknowledged)
        await asyncio.sleep(WITHOUT)
        rejoined = len(journal.acknowledged)
        await asyncio.to_thread(dead.start)
        await _synced(engines[1])
        await asyncio.sleep(AFTER)
        load.stop()
        await work
        result = await _compared(engines, journal)
        result.notes.append(f"acknowledged without the node: {rejoined - killed}")
        result.require(rejoined > killed, "two nodes go on without the third")
        yield result
    finally:
        for node in nodes:
            await asyncio.to_thread(node.stop)


async def _compared(engines: list[AsyncEngine], journal: Journal) -> Result:
    """Audit on every node, the one that was dead among them."""
    every: list[Figures] = []
    for engine in engines:
        await _synced(engine)
        every.append(await audit(engine, journal))
    name = f"{await version(engines[0])}, Galera of {NODES} nodes"
    result = Result("a node killed with -9", name, every[0])
    for number, (engine, figures) in enumerate(zip(engines, every, strict=True)):
        same = figures == every[0]
        result.require(same, f"node {number} has the same: {figures}")
        result.require(engine.pool.checkedout() == 0, "every connection was given back")
        await engine.dispose()
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(journal.retried.items()))
    result.notes.append(f"retried {codes or 'nothing'}")
    result.require(journal.retried["1213"] > 0, "nodes met in certification")
    return result


def _start(nodes: list[MariaDB]) -> None:
    if not _PROVIDER.exists():
        raise SystemExit(f"{_PROVIDER} is missing: .ci/nightly installs it from Debian's packages")
    ports = [free_port() for _ in range(3 * NODES)]
    group, transfer, increments = ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :]
    members = ",".join(f"127.0.0.1:{port}" for port in group)
    for number in range(NODES):
        provider = [
            f"gmcast.listen_addr=tcp://127.0.0.1:{group[number]}",
            f"ist.recv_addr=127.0.0.1:{increments[number]}",
            "gcache.size=64M",
            # A dead node is given up after seconds; by default it takes longer.
            *["evs.keepalive_period=PT0.3S", "evs.inactive_check_period=PT0.3S"],
            *["evs.suspect_timeout=PT2S", "evs.inactive_timeout=PT4S"],
        ]
        options = [
            *["--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON"],
            *[f"--wsrep-provider={_PROVIDER}", f"--wsrep-provider-options={';'.join(provider)}"],
            *[f"--wsrep-cluster-address=gcomm://{members}", "--wsrep-cluster-name=stress"],
            *["--wsrep-node-address=127.0.0.1", f"--wsrep-node-name=node-{number}"],
            *["--wsrep-sst-method=rsync"],
            f"--wsrep-sst-receive-address=127.0.0.1:{transfer[number]}",
        ]
        first = [] if nodes else ["--wsrep-new-cluster"]
        # The state transfer's rsync gives up root's rights.
        node = MariaDB(mariadbd(), durable=True, options=options, first=first, user="mysql")
        nodes.append(node)


def _engine(node: MariaDB, url: URL) -> AsyncEngine:
    """An engine whose reads wait for what other nodes have acknowledged."""
    connect_args = {"init_command": "SET SESSION wsrep_sync_wait = 1", "connect_timeout": 5}
    return create_async_engine(node.url.set(database=url.database), connect_args=connect_args)


async def _synced(engine: AsyncEngine) -> None:
    """Wait until a node takes part."""
    deadline = time.monotonic() + 60
    state = "unreachable"
    while time.monotonic() < deadline:
        try:
            async with engine.connect() as connection:
                shown = await connection.execute(
                    text("SHOW STATUS LIKE 'wsrep_local_state_comment'")
                )
                state = shown.one()[1]
        except SQLAlchemyError as error:
            state = str(error)
        if state == "Synced":
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"a node does not join: {state}")
