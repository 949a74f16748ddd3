"""The command that shows sessions in a browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from agents_session_metadata.errors import install_advice

from .command import command, place_of
from .connection import Place
from .options import Failure, usage
from .output import say

_HOST = "127.0.0.1"


@command("web", "web --demo", panel="Database")
def web(
    ctx: typer.Context,
    *,
    demo: Annotated[
        bool, typer.Option("--demo", help="Show generated sessions in a temporary database.")
    ] = False,
    allow_write: Annotated[
        bool,
        typer.Option(
            "--allow-write", help="Add forms to edit, fork, rewind, delete, approve and reject."
        ),
    ] = False,
    by: Annotated[
        str | None, typer.Option(help="Who approves and rejects; stored with each decision.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port to listen on. 0 selects a free port.")
    ] = 8321,
) -> None:
    """Show sessions in a browser.

    The pages are served on 127.0.0.1 only. They are read-only unless --allow-write is given, and
    restricted to --scope. Press Ctrl-C to stop.
    """
    try:
        from agents_session_metadata.web import LOCAL_HOSTS, browser_app
        from agents_session_metadata.web.serving import serve
    except ImportError as error:
        if error.name not in {"jinja2", "uvicorn"}:
            raise
        message = f"agent-sessions web requires {error.name}; {install_advice('web')}"
        raise Failure(message) from None
    if by is not None and not allow_write:
        usage("--by requires --allow-write")
    with _place(place_of(ctx), demo=demo) as place, place.open(pool_pre_ping=True) as opened:
        catalog, wait = opened
        if demo:
            from agents_session_metadata.web.demo import fill

            say("writing sessions into a temporary database")
            wait(fill(catalog))
        # Start only if the database answers.
        wait(catalog.list_sessions(limit=1, keys=[]))
        with _listening(port) as listener:
            app = browser_app(
                catalog, scope=None, allow_write=allow_write, allowed_hosts=LOCAL_HOSTS, by=by
            )
            say(f"open http://{_HOST}:{listener.getsockname()[1]}/ in a browser; Ctrl-C stops")
            wait.without_limit(serve(app, listener))


@contextmanager
def _place(place: Place, *, demo: bool) -> Iterator[Place]:
    if not demo:
        yield place
        return
    if place.scope:
        usage("pass --demo or --scope, not both")
    with TemporaryDirectory(prefix="agent-sessions-") as folder:
        yield replace(place, url=f"sqlite:///{Path(folder) / 'demo.db'}", create_tables=True)


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as error:
            raise Failure(f"port {port}: {error.strerror}; choose another with --port") from None
        yield listener
