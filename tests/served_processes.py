"""Servers of applications in processes of their own, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx2
from processes import serve
from servers import free_port


class Served:
    """A server, and its clients.

    Attributes:
        address: Its URL.
        process: Its process.
    """

    def __init__(self, process: BaseProcess, port: int, log: Path) -> None:
        self.process = process
        self.address = f"http://127.0.0.1:{port}"
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    async def send(self, method: str, path: str, *, user: str = "ana", **body: Any) -> Any:
        """The status and the text of an answer, by a connection of its own."""
        async with httpx2.AsyncClient(timeout=60) as client:
            headers = {"x-user": user}
            answer = await client.request(
                method, self.address + path, json=body or None, headers=headers
            )
        return answer.status_code, answer.text

    async def leave(
        self,
        path: str,
        *,
        user: str = "ana",
        pieces: bool = True,
        after: float = 0,
        **body: Any,
    ) -> None:
        """Sends a message, and closes the connection in the middle of the answer.

        Args:
            path: Where the message is sent.
            user: Who sends it.
            pieces: Whether the time begins when the first piece of the answer has arrived, or when
                the message is sent.
            after: The time in seconds.
            body: The message.
        """
        has_begun = asyncio.Event()

        async def read() -> None:
            async with (
                httpx2.AsyncClient(timeout=60) as client,
                client.stream(
                    "POST", self.address + path, json=body, headers={"x-user": user}
                ) as response,
            ):
                async for _ in response.aiter_text():
                    has_begun.set()

        reading = asyncio.create_task(read())
        if pieces:
            waiting = asyncio.create_task(has_begun.wait())
            await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        await asyncio.sleep(after)
        reading.cancel()
        await asyncio.wait({reading})


@contextlib.asynccontextmanager
async def killed_process(
    directory: Path,
    app: str,
    environment: Mapping[str, str],
    *,
    log: Path,
    port: int | None = None,
) -> AsyncIterator[Served]:
    """Serves an application of a directory by uvicorn, and kills it at the end of the block."""
    port = port or free_port()
    served = Served(serve(directory, app, environment, port, log), port, log)
    try:
        await asyncio.to_thread(_wait, served, port)
        yield served
    finally:
        served.process.kill()
        served.process.join()


@contextlib.asynccontextmanager
async def server_process(
    directory: Path, app: str, environment: Mapping[str, str], *, log: Path
) -> AsyncIterator[Served]:
    """Serves an application until the end of the block, and lets it end by itself.

    An exception that reached the server fails the block.
    """
    async with killed_process(directory, app, environment, log=log) as served:
        try:
            yield served
        finally:
            served.process.terminate()
            await asyncio.to_thread(served.process.join, 20)
    assert "Exception in ASGI application" not in served.log, served.log
    assert "Task was destroyed" not in served.log, served.log


def _wait(served: Served, port: int) -> None:
    deadline = time.monotonic() + 60
    while served.process.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{served.log}")
