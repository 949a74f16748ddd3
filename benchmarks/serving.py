"""HTTP servers to measure, each in a process of its own, and a client with a kept connection.

`python -m benchmarks.serving KIND URL` serves one and writes its port. Each is the real server of
its library behind uvicorn with the same settings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import uvicorn
from sqlalchemy import URL, make_url

from agents_session_metadata import SessionCatalog

from .measure import Operation

_HERE = Path(__file__).parent
USER_HEADER = "x-user"


class Client:
    """A connection that is kept; it blocks, as nothing else runs in this process meanwhile."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = HTTPConnection("127.0.0.1", port, timeout=120)

    def get(self, path: str, user: str = "") -> bytes:
        """What the server sends for a path.

        Raises:
            RuntimeError: If it is not an answer with status 200.
        """
        self._connection.request("GET", path, headers={USER_HEADER: user})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"GET {path} was answered by {answer.status}: {body[:500]!r}")
        return body

    def operation(self, path: str, user: str = "") -> Operation:
        """The same as something to be timed."""

        async def get(_: int) -> bytes:
            return self.get(path, user)

        return get

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextlib.contextmanager
def serving(kind: str, url: URL | str) -> Iterator[Client]:
    """Serve in another process until the end of the block."""
    text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "benchmarks.serving", kind, text]
    with (
        tempfile.TemporaryDirectory(prefix="bench-serving-") as folder,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_HERE.parent,
            env={**os.environ, "TMPDIR": folder},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            port = next((line for line in lines if line.startswith("port ")), None)
            if port is None:
                raise RuntimeError(f"the server of {kind} did not start")
            client = Client(int(port.split()[1]))
            yield client
            client.close()
        finally:
            process.terminate()


def _ours(url: str) -> Any:
    from agents_session_metadata.http import sessions_app

    catalog = SessionCatalog.from_url(url)
    return sessions_app(
        catalog, scope=lambda request: {"owner_id": request.headers.get(USER_HEADER)}
    )


def _same_bytes(size: str) -> Any:
    """Sends so many bytes and does nothing else: what a server and a client take alone."""
    body = b" " * int(size)

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-length", size.encode()), (b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return app


def _browser(url: str) -> Any:
    from agents_session_metadata.web import browser_app

    catalog = SessionCatalog.from_url(url)
    return browser_app(catalog, scope=None, allow_write=True)


def _adk(url: str, *, web: bool = False) -> Any:
    """The server of `adk api_server`, with one agent, which is never run."""
    from google.adk.cli.fast_api import get_fast_api_app

    agents = Path(tempfile.mkdtemp())
    folder = agents / "benchmark"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "agent.py").write_text(
        "from google.adk.agents import Agent\nroot_agent = Agent(name='benchmark', model='none')\n"
    )
    return get_fast_api_app(agents_dir=str(agents), session_service_uri=url, web=web)


def _adk_web(url: str) -> Any:
    """The server of `adk web`, whose question about usage data is already answered."""
    home = Path(tempfile.mkdtemp())
    (home / ".adk").mkdir()
    (home / ".adk" / "config.json").write_text('{"telemetry": false}')
    os.environ["HOME"] = str(home)
    return _adk(url, web=True)


def _agno(url: str) -> Any:
    from agno.agent import Agent
    from agno.os import AgentOS

    logging.getLogger("agno").setLevel(logging.WARNING)
    db: Any
    if make_url(url).get_backend_name() == "sqlite":
        from agno.db.sqlite import AsyncSqliteDb

        db = AsyncSqliteDb(db_url=url)
    else:
        from agno.db.postgres import AsyncPostgresDb

        db = AsyncPostgresDb(db_url=url, db_schema="public", create_schema=False)
    return AgentOS(agents=[Agent(id="benchmark", db=db)], telemetry=False).get_app()


def _datasette(url: str) -> Any:
    from datasette.app import Datasette

    return Datasette([make_url(url).database]).app()


_APPS: dict[str, Callable[[str], Any]] = {
    "ours": _ours,
    "bytes": _same_bytes,
    "browser": _browser,
    "adk": _adk,
    "adk web": _adk_web,
    "agno": _agno,
    "datasette": _datasette,
}


def main() -> None:
    """Serve until a signal comes."""
    kind, url = sys.argv[1:]
    app = _APPS[kind](url)
    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        print("port", listener.getsockname()[1], flush=True)
        # Nobody reads standard output from here on.
        os.dup2(2, 1)
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            # A client waits while the others have their turns.
            timeout_keep_alive=3600,
        )
        uvicorn.Server(settings).run(sockets=[listener])


if __name__ == "__main__":
    main()
