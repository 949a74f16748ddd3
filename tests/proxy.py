"""A way to a server that can be cut: at once, by chance, or for good."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

from sqlalchemy import URL

_CHUNK = 1 << 16


class Proxy:
    """Passes bytes between clients and a server, until it is told otherwise.

    Attributes:
        url: Where the clients connect.
        change: Replaces each chunk of an answer of the server.
        lost: Asked at every chunk of bytes, with whether it is an answer of the server: cuts the
            connection when true, and the chunk never arrives.
        cuts: How many connections were cut.
    """

    def __init__(self, server: URL) -> None:
        self.url = server
        self.change: Callable[[bytes], bytes] = lambda chunk: chunk
        self.lost: Callable[[bool], bool] = lambda _is_answer: False
        self.cuts = 0
        self._server = server
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        # PostgreSQL's URL has the directory of its socket in the query.
        self.url = self._server.set(host="127.0.0.1", port=port, query={})

    async def refuse(self) -> None:
        """Cut everything and answer nobody from now on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        """Cut every connection, without a goodbye."""
        for writer in list(self._writers):
            self._abort(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        directory = self._server.query.get("host")
        if isinstance(directory, str):
            server = await asyncio.open_unix_connection(f"{directory}/.s.PGSQL.5432")
        else:
            server = await asyncio.open_connection(self._server.host, self._server.port)
        pair = writer, server[1]
        self._writers.add(writer)
        for source, target, is_answer in ((reader, server[1], False), (server[0], writer, True)):
            task = asyncio.create_task(self._pass(source, target, pair, is_answer=is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        is_answer: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(_CHUNK):
                if self.lost(is_answer):
                    self._abort(pair[0])
                    break
                target.write(self.change(chunk) if is_answer else chunk)
                await target.drain()
        for writer in pair:
            self._writers.discard(writer)
            writer.close()

    def _abort(self, writer: asyncio.StreamWriter) -> None:
        self.cuts += 1
        self._writers.discard(writer)
        writer.transport.abort()


def by_chance(probability: float) -> Callable[[bool], bool]:
    """Loses so many of the chunks, questions and answers alike."""
    return lambda _is_answer: random.random() < probability


@contextlib.asynccontextmanager
async def proxy_to(server: URL) -> AsyncIterator[Proxy]:
    """A proxy that listens until the end of the block."""
    proxy = Proxy(server)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.refuse()
