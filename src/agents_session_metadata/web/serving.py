"""Serves an application on a socket that already listens."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp


async def serve(app: ASGIApp, listener: socket.socket) -> None:
    settings = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    await uvicorn.Server(settings).serve(sockets=[listener])
