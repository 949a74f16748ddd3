"""`asyncio.Runner` for Python 3.10, as far as the command line uses it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Runner:
    """Runs coroutines, one after another, in one event loop; Ctrl-C cancels them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine.

        Raises:
            KeyboardInterrupt: If Ctrl-C cancelled it.
        """
        task = self._loop.create_task(work)
        handles = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if not handles:
            return self._loop.run_until_complete(task)
        self._loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            return self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            self._loop.remove_signal_handler(signal.SIGINT)

    def close(self) -> None:
        """Cancel what is left and close the loop."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:  # Without tasks, `gather` belongs to another loop.
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
