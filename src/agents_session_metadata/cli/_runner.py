"""Runs the coroutines of a command, and handles Ctrl-C during and between them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_SECONDS = 1.0
"""The time that `close` waits for a thread. Python waits for it again at exit."""


class Runner:
    """Runs coroutines, one after another, in one event loop.

    Unlike `asyncio.Runner`, it does not lose a Ctrl-C at the end of a coroutine. `asyncio.Runner`
    restores the signal handler before it frees the task, and an exception that is raised in the
    callback of a weak reference is printed and lost: the command would continue.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._others = {*threading.enumerate()}
        self._task: asyncio.Task[Any] | None = None
        self._is_running = self._is_interrupted = False

    def handle_interrupts(self) -> None:
        """From now on, Ctrl-C cancels the running coroutine, or raises KeyboardInterrupt."""
        signal.signal(signal.SIGINT, self._interrupt)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine. Raises KeyboardInterrupt even for a lost Ctrl-C before it."""
        self._is_running = True
        try:
            # Here the task before is freed; it is kept until then.
            self._task = self._loop.create_task(work)
            if self._is_interrupted:
                self._task.cancel()
            result: T = self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            if not self._is_interrupted:
                raise
            raise KeyboardInterrupt from None
        finally:
            self._is_running = False
        if self._is_interrupted:
            raise KeyboardInterrupt
        return result

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Run a last coroutine, even after Ctrl-C, then cancel other tasks and close the loop."""
        self._is_interrupted = False
        try:
            if last is not None:
                self.run(last)
        finally:
            self._is_running = True
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:  # Without tasks, `gather` belongs to another loop.
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            # A driver's thread may still have to tell the loop that it could not connect.
            for thread in {*threading.enumerate()} - self._others:
                if not thread.daemon:
                    thread.join(_SECONDS)
            self._loop.close()

    def _interrupt(self, _number: int, _frame: object) -> None:
        # The first one cancels; if that does not help, the next one raises.
        is_first, self._is_interrupted = not self._is_interrupted, True
        if not (self._is_running and is_first):
            raise KeyboardInterrupt
        if self._task is not None:
            self._task.cancel()
        self._loop.call_soon_threadsafe(lambda: None)  # It wakes the loop.
