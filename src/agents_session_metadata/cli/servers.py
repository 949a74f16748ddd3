"""The commands that run until they are stopped: the MCP server and the pages for a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from . import options, output
from .app import cli
from .connection import ChosenDatabase, database_options
from .options import Whole, flag, usage

if TYPE_CHECKING:
    import socket

    from agents_session_metadata import SessionCatalog


_HOST = "127.0.0.1"


@cli.command("mcp", epilog="Example: agent-sessions mcp --scope owner_id=u1 --tool-prefix chats_")
@flag("--allow-write", help="Add the tools that change metadata.")
@click.option("--tool-prefix", default="", show_default=False, help="Prefix for the tool names.")
@click.option("--session", help="Restrict the server to this session, the default of all tools.")
@flag("--plain", help="Answer get_metadata with {KEY: VALUE} and nothing else; see the docs.")
@flag("--create", help="Let set_metadata create sessions without create=true.")
@database_options(limits=True, serves=True)
async def serve_mcp(database: ChosenDatabase, **settings: Any) -> None:
    """Run an MCP server on stdin and stdout, for agents.

    The server is read-only unless --allow-write is given, and restricted to --scope.
    """
    import asyncio

    from agents_session_metadata import mcp

    options.standard_input()
    catalog = database.open(pool_pre_ping=True)
    server = mcp.make_server(catalog, **settings)
    await catalog.list_sessions(limit=1, keys=[])  # Start only if the database answers.
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
            raise output.stream_error(error) from None
        raise error from None


@cli.command("web", epilog="Example: agent-sessions web --port 8000")
@flag("--allow-write", help="Add forms to edit, fork, rewind, delete, approve and reject.")
@flag("--demo", help="Show generated sessions in a temporary database, with all forms.")
@click.option("--by", "name", help="The name to store with each decision.")
@click.option("--currency", default="$", help="The currency of costs, as a sign or a code.")
@click.option(
    "--port", type=Whole(0, 65_535), default=8321, help="The port. 0 selects a free port."
)
@database_options(limits=True, serves=True)
async def serve_web(
    database: ChosenDatabase,
    allow_write: bool,
    demo: bool,
    name: str | None,
    currency: str,
    port: int,
) -> None:
    """Show sessions in a browser.

    The pages are served on 127.0.0.1 only. They are read-only unless --allow-write is given, and
    restricted to --scope. Press Ctrl-C to stop.
    """
    import uvicorn

    from agents_session_metadata import web

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # An open page follows its changes without end: uvicorn would wait, and log a traceback.
            for connection in self.server_state.connections:
                connection.transport.close()
            await super().shutdown(sockets)

    if name is not None and not (allow_write or demo):
        usage("--by requires --allow-write")
    stored = _generated() if demo else nullcontext(database.open(pool_pre_ping=True))
    async with stored as catalog:
        await catalog.list_sessions(limit=1, keys=[])  # Start only if the database answers.
        with _listening(port) as listener:
            app = web.browser_app(
                catalog,
                scope=None,
                allow_write=allow_write or demo,
                by=name or ("you" if demo else None),
                currency=currency,
            )
            output.say(
                f"open http://{_HOST}:{listener.getsockname()[1]}/ in a browser; Ctrl-C stops"
            )
            settings = uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=2,
            )
            await Server(settings).serve(sockets=[listener])


@asynccontextmanager
async def _generated() -> AsyncIterator[SessionCatalog]:
    """Fills a database that ends with the command."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from agents_session_metadata import SessionCatalog
    from agents_session_metadata.web.demo import fill

    with TemporaryDirectory(prefix="agent-sessions-") as folder:
        url = f"sqlite:///{Path(folder) / 'sessions.db'}"
        async with SessionCatalog.from_url(url, create_tables=True) as catalog:
            output.say("generating sessions in a temporary database")
            await fill(catalog)
            yield catalog


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    import socket

    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
            listener.listen()  # Before the address is printed.
        except OSError as error:
            sentence = f"port {port}: {error.strerror}; choose another with --port"
            raise click.ClickException(sentence) from None
        yield listener
