"""The console script `agent-sessions`.

Typer and Rich come with the extra `cli`. This module imports without them, so that it can say so.
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
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # open until the process exits
    if sys.stdout is None:
        sys.exit("standard output is closed; send it to a file, or to /dev/null")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While modules are imported, an exception could be raised, and lost, anywhere.
        signal.signal(signal.SIGINT, exit_at_once)
    try:
        from . import app, connection
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        sys.exit(
            f"agent-sessions needs {error.name}; "
            "install it with: pip install 'agents-session-metadata[cli]'"
        )
    code: object = 0
    try:
        try:
            app.app()
        except SystemExit as error:
            code = error.code
        if sys.__stdout__ is not None:  # Typer replaces `sys.stdout` after an error.
            sys.stdout = sys.__stdout__
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes the stream at exit; what is left in it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno != errno.EPIPE:  # A reader that has seen enough closes the pipe.
            sys.stderr.write(f"{error.filename or 'standard output'}: {error.strerror}\n")
        code = 1
    except KeyboardInterrupt:
        code = 130
    if connection.abandoned:
        # A thread or a task still waits for the database and would keep the process alive.
        sys.stderr.flush()
        os._exit(int(code) if isinstance(code, int) else 1)
    sys.exit(code)  # type: ignore[arg-type]  # what Typer passed to `sys.exit`


def exit_at_once(_number: int, _frame: object) -> None:
    """End the process at Ctrl-C, while nothing is open that has to be closed."""
    os._exit(130)
