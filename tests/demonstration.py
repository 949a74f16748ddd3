"""The demonstration of the browser, and how to open it in Chromium."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = ["-m", "agents_session_metadata.cli", "web", "--demo", "--by", "ana"]
CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""The options that Chromium is started with."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of the demonstration, which leaves nothing behind."""
    command = [sys.executable, *PROGRAM, "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr.readline, "")
            yield next(found[0] for line in lines if (found := re.search(r"http://[\w.:]+", line)))
        finally:
            server.send_signal(signal.SIGINT)
            code = server.wait(timeout=30)
            assert server.stderr is not None
            written = server.stderr.read()
            assert written == ""
    assert code == 130
    assert list(folder.iterdir()) == []
