"""The console script `agent-sessions`.

Importing this module requires neither Click nor Rich, so that `main` can print how to install them.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from io import TextIOWrapper


def exit_at_once(_number: int, _frame: object) -> None:
    """Ends the process at Ctrl-C: during an import, an exception could be caught and lost."""
    os._exit(130)


def main() -> None:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  # open until the process exits
    if sys.stdout is None:
        sys.exit("standard output is closed; send it to a file, or to /dev/null")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_at_once)
    # Imports make many objects and no garbage; the collector would look through them 50 times.
    gc.set_threshold(50_000, 20, 20)
    code: object = 0
    try:
        from .app import cli

        try:
            cli(obj=exit_at_once)
        except SystemExit as error:
            code = error.code
        if sys.__stdout__ is not None:  # Click replaces `sys.stdout` after an error.
            sys.stdout = sys.__stdout__
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes the stream at exit; what is left in it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno != errno.EPIPE:  # A reader that has seen enough closes the pipe.
            sys.stderr.write(f"standard output: {error.strerror}\n")
        code = 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"click", "rich"}:
            raise
        from agents_session_metadata.errors import install_advice

        code = f"agent-sessions requires {error.name}; {install_advice('cli')}"
    # The work is done; the interpreter would die of a signal while it shuts down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)  # type: ignore[arg-type]  # what Click passed to it
