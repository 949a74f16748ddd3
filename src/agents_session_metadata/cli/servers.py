"""The commands that run until they are stopped: the MCP server and the pages for a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .app import SERVER, Target, command
from .options import Whole, flag, option, standard_input, usage
from .output import Answer, say, stream_error

if TYPE_CHECKING:
    import socket


_HOST = "127.0.0.1"


@command("mcp --scope owner_id=u1 --tool-prefix chats_", SERVER)
async def mcp(
    target: Target,
    allow_write: bool = flag("Add the tools that change metadata."),
    tool_prefix: str = option("Prefix for the tool names.", default=""),
    session: str | None = option("Restrict the server to this session, the default of all tools."),
    plain: bool = flag("Answer a query for one key with {KEY: VALUE} and nothing else."),
) -> Answer:
    """Run an MCP server on stdin and stdout, for agents.

    The server is read-only unless --allow-write is given, and restricted to --scope.
    """
    import asyncio

    from agents_session_metadata.mcp import make_server

    standard_input()
    target.engine_options["pool_pre_ping"] = True
    server = make_server(
        target.catalog,
        allow_write=allow_write,
        tool_prefix=tool_prefix,
        session=session,
        plain=plain,
    )
    await target.catalog.list_sessions(limit=1, keys=[])  # Start only if the database answers.
    # Nothing ends the thread that reads stdin; an interrupted command does not wait for it.
    serving = asyncio.ensure_future(server.run_stdio_async())
    await asyncio.wait({serving})
    try:
        serving.result()
    except Exception as error:
        # The error itself, without the groups around it.
        while nested := getattr(error, "exceptions", ()):
            error = nested[0]
        if isinstance(error, OSError):
            raise stream_error(error) from None
        raise error from None
    return Answer()


@command("web --port 8000", SERVER)
async def web(
    target: Target,
    allow_write: bool = flag("Add forms to edit, fork, rewind, delete, approve and reject."),
    name: str | None = option("Who decides; stored with each decision.", "--by"),
    currency: str = option("The currency of costs, as a sign or a code.", default="$"),
    port: int = option("The port. 0 selects a free port.", type=Whole(0, 65_535), default=8321),
) -> Answer:
    """Show sessions in a browser.

    The pages are served on 127.0.0.1 only. They are read-only unless --allow-write is given, and
    restricted to --scope. Press Ctrl-C to stop.
    """
    from agents_session_metadata.web import LOCAL_HOSTS, browser_app
    from agents_session_metadata.web.serving import serve

    if name is not None and not allow_write:
        usage("--by requires --allow-write")
    target.engine_options["pool_pre_ping"] = True
    await target.catalog.list_sessions(limit=1, keys=[])  # Start only if the database answers.
    with _listening(port) as listener:
        app = browser_app(
            target.catalog,
            scope=None,
            allow_write=allow_write,
            allowed_hosts=LOCAL_HOSTS,
            by=name,
            currency=currency,
        )
        say(f"open http://{_HOST}:{listener.getsockname()[1]}/ in a browser; Ctrl-C stops")
        await serve(app, listener)
    return Answer()


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    import socket

    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as error:
            sentence = f"port {port}: {error.strerror}; choose another with --port"
            raise click.ClickException(sentence) from None
        yield listener
