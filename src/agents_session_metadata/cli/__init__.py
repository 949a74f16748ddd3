"""The console script `agent-sessions`.

Importing this module requires neither Click nor Rich, so that `main` can print how to install them.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from importlib.util import find_spec
from io import TextIOWrapper

from ._interrupt import exit_at_once


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
        code = _run()
        if sys.__stdout__ is not None:  # Click replaces `sys.stdout` after an error.
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
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"click", "rich"}:
            raise
        from agents_session_metadata.errors import install_advice

        code = f"agent-sessions requires {error.name}; {install_advice('cli')}"
    # The work is done; the interpreter would die of a signal while it shuts down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)  # type: ignore[arg-type]  # what Click passed to it


def _run() -> object:
    from .app import app

    # Click may be there for the SDK. Not every command needs Rich, but the extra has both.
    if find_spec("rich") is None:
        raise ModuleNotFoundError(name="rich")
    try:
        app()
    except SystemExit as error:
        return error.code
    return 0
