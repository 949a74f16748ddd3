"""Ctrl-C ends every command with exit code 130, whatever it is doing, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import httpx2
import pytest
from conformance import raw
from demonstration import serving
from scaling import scale

from agents_session_metadata import SessionCatalog

POINTS = scale(2, 30)
SESSIONS = scale(60, 400)

# Before `main` sets its handler there is only the interpreter, which no program can guard.
PROGRAM = """
import os, signal
from agents_session_metadata.cli import main
set_handler = signal.signal
def begin(*arguments):
    signal.signal = set_handler
    set_handler(*arguments)
    os.write(2, b"+")
signal.signal = begin
main()
"""


class Command:
    """A command in a process of its own."""

    def __init__(self, args, url, **streams):
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, args)],
            stderr=subprocess.PIPE,
            env={**os.environ, "AGENT_SESSIONS_URL": url, "PYTHONUNBUFFERED": ""},
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **streams},
        )
        assert self.process.stderr.read(1) == b"+"

    def end(self):
        """Its exit code and what it said."""
        with self.process:
            said = self.process.stderr.read().decode()
            return self.process.wait(60), said


DONE = {"export": "exported ", "import": "read ", "cleanup": "deleted "}


async def interrupted(args, url, delay):
    """Run a command and interrupt it some seconds after its start."""

    def run():
        command = Command(args, url)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(delay)
        command.process.send_signal(signal.SIGINT)
        return command.end()

    return await asyncio.to_thread(run)


@pytest.fixture
async def filled(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    message = raw.message("x" * 2_000)
    for number in range(SESSIONS):
        session = await catalog.create_session(f"s{number:04}", metadata={"n": number})
        await session.add_items([message, message])
    return catalog


@pytest.mark.scaled
@pytest.mark.logic
@pytest.mark.timeout(scale(300, 1_200))
async def test_at_any_time(shared_database, filled, tmp_path):
    url, file = shared_database.url, tmp_path / "sessions"
    file.write_text("before")
    commands = {
        "export": ["export", "--output", file],
        "import": ["import", tmp_path / "all", "--on-conflict", "replace", "--yes"],
        "cleanup": ["cleanup", "--hours", "0", "--yes", "--timeout", "60"],
    }
    run = await asyncio.to_thread(Command, ["export", "--output", tmp_path / "all"], url)
    assert await asyncio.to_thread(run.end) == (0, f"exported {SESSIONS} sessions\n")
    whole = time.monotonic() - run.started
    exported = (tmp_path / "all").read_text()
    seen = set()
    for name, args in commands.items():
        for point in range(POINTS):
            # The first one while modules are imported.
            delay = whole * (point / POINTS + random.random() / 10)
            code, said = await interrupted(args, url, delay)
            assert code in ({130} if point == 0 else {0, 130}), (name, delay, code, said)
            assert "Traceback" not in said
            assert "Exception ignored" not in said
            # The signal may come when all is done and said, and the process has not ended.
            assert code == 0 or said == "" or said.startswith(DONE[name]), (name, said)
            seen.add(code)
            left = await filled.count_sessions()
            assert left == SESSIONS or name == "cleanup"
            # It is the process that worked; nothing goes on in the server.
            assert await filled.count_sessions() == left
            # A record is imported as a whole.
            items = await raw.count_rows(filled.engine, "agent_messages")
            assert items == 2 * left
            if name == "export" and code:
                # The signal may come when the file is complete, and the process has not ended.
                assert file.read_text() in ("before", exported)
                assert not list(tmp_path.glob(".sessions*"))
            file.write_text("before")
        if name == "cleanup":
            break
        await asyncio.to_thread(
            Command(["import", tmp_path / "all", "--on-conflict", "skip"], url).end
        )
    assert 130 in seen


@pytest.mark.scaled
@pytest.mark.parametrize("args", [["list"], ["--help"], ["resume-check", "chat"]])
async def test_while_it_starts(args, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    for point in range(scale(4, 40)):
        code, said = await interrupted([*args], url, 0.3 * random.random() * (point % 4) / 3)
        assert code in {130, 0, 1}
        assert "Traceback" not in said
        assert "Exception ignored" not in said
        assert code != 130 or said == ""


def test_the_loop_is_open_as_long_as_a_thread_answers_it(tmp_path):
    """A driver's thread says so after a connection that failed, and printed a traceback."""
    command = Command(["count", "--create-tables"], f"sqlite:///{tmp_path}/none/x.db")
    code, said = command.end()
    assert code == 1
    assert len(said.splitlines()) == 1
    assert "unable to open database file" in said


def test_the_browser_while_a_page_is_open(tmp_path):
    """`serving` ends the server, and expects that it says nothing."""
    with serving(tmp_path) as address, httpx2.Client(base_url=address, timeout=30) as client:
        following = client.send(client.build_request("GET", "/events"), stream=True)
        assert following.status_code == 200
        assert client.get("/").status_code == 200
        began = time.monotonic()
    # uvicorn would wait two seconds for the page.
    assert time.monotonic() - began < 2
