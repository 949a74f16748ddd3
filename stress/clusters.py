"""A cluster of three servers, one of which is killed under load and joins again."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import ClassVar

from sqlalchemy import URL, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from servers import MySQLServer

from .audit import audit
from .databases import create_database, version
from .journal import Journal
from .load import Load, prepare
from .results import Figures, Result

NODES = 3
BEFORE, AFTER = 6.0, 4.0
"""Seconds of load: with all nodes, and with the dead one back."""


class Cluster(ABC):
    """The nodes of a cluster, whose first one takes writes."""

    title: ClassVar[str]
    fault: ClassVar[str]
    dead: ClassVar[int]
    """The number of the node that is killed."""
    without: ClassVar[float]
    """Seconds of load without it."""
    init_command: ClassVar[str]
    """Makes the reads of a connection wait for what other nodes have acknowledged."""
    state: ClassVar[str]
    """A query whose last column is the state of a node."""
    joined: ClassVar[str]

    def __init__(self) -> None:
        self.nodes: list[MySQLServer] = []

    @abstractmethod
    async def start(self) -> None:
        """Start the nodes, and add each to `nodes`."""

    @abstractmethod
    async def join(self, node: MySQLServer) -> None:
        """Let a node take part that has been started."""

    def engine(self, node: MySQLServer, url: URL) -> AsyncEngine:
        connect_args = {"init_command": self.init_command, "connect_timeout": 5}
        return create_async_engine(node.url.set(database=url.database), connect_args=connect_args)

    async def wait_for(self, engine: AsyncEngine) -> None:
        """Wait until a node takes part."""
        deadline = time.monotonic() + 60
        state = "unreachable"
        while time.monotonic() < deadline:
            try:
                async with engine.connect() as connection:
                    rows = await connection.execute(text(self.state))
                    state = rows.one()[-1]
            except SQLAlchemyError as error:
                state = str(error)
            if state == self.joined:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"a node does not join: {state}")

    @abstractmethod
    def check(self, result: Result, journal: Journal) -> None:
        """Require what only this kind of cluster promises."""


async def kill_node(cluster: Cluster) -> AsyncIterator[Result]:
    """Kill a node under load, let it join again, and ask every node what it has."""
    try:
        await cluster.start()
        url = await create_database(cluster.nodes[0].url)
        await prepare(url)
        engines = [cluster.engine(node, url) for node in cluster.nodes]
        for engine in engines:
            await cluster.wait_for(engine)
        journal = Journal()
        load = Load(journal, engines, writers=2 * NODES)
        work = asyncio.create_task(load.run(120))
        await asyncio.sleep(BEFORE)
        dead = cluster.nodes[cluster.dead]
        await asyncio.to_thread(dead.kill)
        killed = len(journal.acknowledged)
        await asyncio.sleep(cluster.without)
        rejoined = len(journal.acknowledged)
        await asyncio.to_thread(dead.start)
        await cluster.join(dead)
        await cluster.wait_for(engines[cluster.dead])
        await asyncio.sleep(AFTER)
        load.stop()
        await work
        result = await _compared(cluster, engines, journal)
        result.notes.append(f"acknowledged without the node: {rejoined - killed}")
        result.require(rejoined > killed, "two nodes go on without the third")
        yield result
    finally:
        for node in cluster.nodes:
            await asyncio.to_thread(node.stop)


async def _compared(cluster: Cluster, engines: list[AsyncEngine], journal: Journal) -> Result:
    """Audit on every node, the one that was dead among them."""
    every: list[Figures] = []
    for engine in engines:
        await cluster.wait_for(engine)
        every.append(await audit(engine, journal))
    name = f"{await version(engines[0])}, {cluster.title} of {NODES} nodes"
    result = Result(cluster.fault, name, every[0])
    for number, (engine, figures) in enumerate(zip(engines, every, strict=True)):
        same = figures == every[0]
        result.require(same, f"node {number} has the same: {figures}")
        result.require(engine.pool.checkedout() == 0, "every connection was given back")
        await engine.dispose()
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(journal.retried.items()))
    result.notes.append(f"retried {codes or 'nothing'}")
    cluster.check(result, journal)
    return result
