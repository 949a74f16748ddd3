"""The console script `agent-sessions`.

Typer and Rich come with the extra `cli`; this module imports without them, to say so.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path


def main() -> None:
    """Run the command line."""
    _occupy_closed_streams()
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # That of asyncio waits for what is being read to end.
            signal.signal(signal.SIGINT, _interrupt)
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        sys.stderr.write(
            f"agent-sessions needs {error.name}; "
            "install it with: pip install 'agents-session-metadata[cli]'\n"
        )
        sys.exit(1)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        # What cannot be written is not to be flushed at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Nor is it told again, as Python 3.13 does for each writer: the MCP server has its own.
        sys.unraisablehook = lambda _: None
        if error.errno != errno.EPIPE:  # Else whoever read the output has had enough.
            sys.stderr.write(f"{error.filename or 'standard output'}: {error.strerror}\n")
        sys.exit(1)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _occupy_closed_streams() -> None:
    """Put the null device where a stream is closed: a database would get its number."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if stream is None:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # it is written to until the exit
    if sys.stdout is None:
        sys.stderr.write("standard output is closed; send it to a file, or to /dev/null\n")
        sys.exit(1)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
