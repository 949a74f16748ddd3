"""Runs scripts and programs in processes of their own, several at the same moment.

They are forked from a process that has imported the package, because that import takes longer than
most scripts do. The forked ones share nothing: no connection is open where they come from.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple

_DRIVERS = ("aiosqlite", "asyncpg", "asyncmy")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *["agents", "agents.testing", *_DRIVERS],
        *["agents_session_metadata.session", "agents_session_metadata.tracking.tracker"],
        *["sqlalchemy.dialects.sqlite.aiosqlite", "sqlalchemy.dialects.postgresql.asyncpg"],
        *["sqlalchemy.dialects.mysql.asyncmy", "uvicorn.main", "fastapi"],
    ]
)
_READY, _VALUE, _ERROR, _END = "ready", "value", "error", "end"


class ProcessError(AssertionError):
    """A process failed, or did not end in time."""


class Script:
    """A script in a process of its own.

    It finds its arguments in `sys.argv[1:]`. It calls `start()` when it has made its preparations;
    the call returns at `go`. It calls `emit(value)` for each result.

    Args:
        script: Python source.
        arguments: Its arguments, as strings.
        timeout: Seconds after which nothing is waited for any more.
    """

    def __init__(self, script: str, arguments: Sequence[object], *, timeout: float = 150) -> None:
        self._timeout = timeout
        self._channel, theirs = _FORKS.Pipe()
        given = (script, [str(argument) for argument in arguments], theirs)
        self._process = _FORKS.Process(target=_run, args=given, daemon=True)
        self._process.start()
        self._deadline = time.monotonic() + timeout
        theirs.close()

    def receive(self) -> Any:
        """The next value that the script emits.

        Raises:
            ProcessError: The script failed, has ended, or emits nothing in time.
        """
        kind, value = self._next()
        if kind != _VALUE:
            raise ProcessError("the script emitted nothing more")
        return value

    def wait_until_ready(self) -> None:
        """Wait until the script calls `start()`."""
        kind, value = self._next()
        if kind != _READY:
            raise ProcessError(f"the script did not call start(): {kind} {value}")

    def go(self) -> None:
        """Let `start()` return."""
        self._channel.send(None)

    def results(self) -> list[Any]:
        """Everything that the script emits until it ends."""
        values = []
        while (message := self._next())[0] == _VALUE:
            values.append(message[1])
        return values

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the script has not ended yet."""
        return self._process.is_alive()

    def kill(self) -> None:
        """End the script without a chance to clean up, if it has not ended."""
        self._process.kill()
        self._process.join()
        self._channel.close()

    def exit_code(self) -> int | None:
        """Wait for the end; the exit code, negative for a signal, None if it does not end."""
        self._process.join(self._seconds_left())
        return self._process.exitcode

    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _next(self) -> tuple[str, Any]:
        if not self._channel.poll(self._seconds_left()):
            raise ProcessError(f"no end within {self._timeout} s")
        try:
            kind, value = self._channel.recv()
        except (EOFError, ConnectionError):
            code = self.exit_code()
            if code != 0:
                raise ProcessError(f"exit code {code}") from None
            return _END, None
        if kind == _ERROR:
            raise ProcessError(value)
        return kind, value


class ProgramResult(NamedTuple):
    """What a program wrote, and its exit code."""

    exit_code: int | None
    stdout: str
    stderr: str


def run_program(
    path: Path, *, directory: Path, environment: Mapping[str, str], timeout: float = 120
) -> ProgramResult:
    """Run a Python file as `python -W error path` does, without the time to import the package.

    Args:
        path: The file.
        directory: Where it runs.
        environment: All of its environment.
        timeout: Seconds after which it is killed.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        given = (path, directory, dict(environment), DupFd(stdout.fileno()), DupFd(stderr.fileno()))
        process = _FORKS.Process(target=_run_program, args=given, daemon=True)
        process.start()
        process.join(timeout)
        process.kill()
        process.join()
        for file in (stdout, stderr):
            file.seek(0)
        return ProgramResult(process.exitcode, stdout.read(), stderr.read())


def serve(
    directory: Path, app: str, environment: Mapping[str, str], port: int, log: Path
) -> BaseProcess:
    """Start `uvicorn --app-dir directory --port port app`, as `run_program` starts a file.

    Args:
        directory: Where the module of the application is.
        app: The application, as `module:name`.
        environment: What is added to the environment.
        port: Where it listens.
        log: The file to which it writes; its directory is the one where it runs.
    """
    process = _FORKS.Process(
        target=_serve, args=(directory, app, {**os.environ, **environment}, port, log), daemon=True
    )
    process.start()
    return process


async def run_processes(
    script: str, arguments: Sequence[Sequence[object]], *, timeout: float = 150
) -> list[list[Any]]:
    """Run a script once for each of the given lists of arguments, all at the same time.

    When every process has called `start()`, the calls return.

    Args:
        script: Python source, as for `Script`.
        arguments: One list of arguments a process.
        timeout: Seconds after which the processes are killed.

    Returns:
        The emitted values of each process, in the order of `arguments`.

    Raises:
        ProcessError: A process failed, or did not end in time.
    """
    return await asyncio.to_thread(_race, script, arguments, timeout)


def _race(script: str, arguments: Sequence[Sequence[object]], timeout: float) -> list[list[Any]]:
    children: list[Script] = []
    try:
        children += [Script(script, given, timeout=timeout) for given in arguments]
        for child in children:
            child.wait_until_ready()
        for child in children:
            child.go()
        return [child.results() for child in children]
    finally:
        for child in children:
            child.kill()


def _run(script: str, arguments: list[str], channel: Connection) -> None:
    def start() -> None:
        channel.send((_READY, None))
        channel.recv()

    def emit(value: object) -> None:
        channel.send((_VALUE, value))

    sys.argv = ["script", *arguments]
    names = {"__name__": "__main__", "start": start, "emit": emit}
    try:
        exec(compile(script, "<script>", "exec"), names)  # noqa: S102  # what it is for
    except Exception:  # noqa: BLE001  # told where it is waited for
        channel.send((_ERROR, traceback.format_exc()))
        sys.exit(1)


def _begin(directory: Path, environment: dict[str, str], stdout: int, stderr: int) -> None:
    """Give a forked process what a started one gets: its streams, directory and environment."""
    for number, passed in enumerate((stdout, stderr), start=1):
        os.dup2(passed, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)


def _serve(directory: Path, app: str, environment: dict[str, str], port: int, log: Path) -> None:
    import uvicorn

    with log.open("ab", buffering=0) as output:
        _begin(log.parent, environment, output.fileno(), output.fileno())
    uvicorn.run(app, app_dir=str(directory), port=port)


def _run_program(
    path: Path, directory: Path, environment: dict[str, str], stdout: Any, stderr: Any
) -> None:
    _begin(directory, environment, stdout.detach(), stderr.detach())
    tempfile.tempdir = None
    sys.argv = [str(path)]
    sys.path.insert(0, str(path.parent))
    warnings.resetwarnings()
    warnings.simplefilter("error")
    runpy.run_path(str(path), run_name="__main__")
