"""The command that shows sessions in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agents_session_metadata.errors import install_advice

from .command import SERVER, command
from .options import Failure, Whole, flag, option, takes, usage
from .output import say

if TYPE_CHECKING:
    import socket

    from .connection import Place

_HOST = "127.0.0.1"


@command("web", "web", panel="Database", shared=SERVER)
@takes(
    flag("--allow-write", help="Add forms to edit, fork, rewind, delete, approve and reject."),
    option("--by", metavar="NAME", help="Who approves and rejects; stored with each decision."),
    option(
        "--port",
        type=Whole(0, 65_535),
        default=8321,
        help="The port to listen on. 0 selects a free port.",
    ),
)
async def web(place: Place, *, allow_write: bool, by: str | None, port: int) -> None:
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
    async with place.open(pool_pre_ping=True) as (catalog, wait):
        # Start only if the database answers.
        await wait(catalog.list_sessions(limit=1, keys=[]))
        with _listening(port) as listener:
            app = browser_app(
                catalog, scope=None, allow_write=allow_write, allowed_hosts=LOCAL_HOSTS, by=by
            )
            say(f"open http://{_HOST}:{listener.getsockname()[1]}/ in a browser; Ctrl-C stops")
            await wait.without_limit(serve(app, listener))


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    import socket

    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as error:
            raise Failure(f"port {port}: {error.strerror}; choose another with --port") from None
        yield listener
