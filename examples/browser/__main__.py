"""Shows generated sessions in a browser: `python examples/browser`.

They are in a temporary database, which Ctrl-C deletes. The extra `web` is required.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from sessions import fill
from starlette.applications import Starlette
from starlette.routing import Mount

from agents_session_metadata import SessionCatalog
from agents_session_metadata.web import browser_app


def main(port: int) -> None:
    with TemporaryDirectory(prefix="agent-sessions-") as folder, socket.socket() as listener:
        url = f"sqlite:///{Path(folder) / 'sessions.db'}"
        catalog = SessionCatalog.from_url(url, create_tables=True)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with catalog:
                await fill(catalog)
                print(f"open http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
                yield

        pages = browser_app(catalog, scope=None, allow_write=True, by="ana")
        app = Starlette(routes=[Mount("/", app=pages)], lifespan=lifespan)
        settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8321)
    main(parser.parse_args().port)
