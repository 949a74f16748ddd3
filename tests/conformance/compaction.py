"""A client that compacts without a network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any


class Client:
    """Stands where `AsyncOpenAI` does, and answers `responses.compact` with the given items."""

    def __init__(
        self, output: list[Any], before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.responses = self
        self.output = output
        self.before = before
        self.requests: list[dict[str, Any]] = []

    async def compact(self, **request: Any) -> SimpleNamespace:
        self.requests.append(request)
        if self.before is not None:
            await self.before()
        return SimpleNamespace(output=self.output, usage=None)
