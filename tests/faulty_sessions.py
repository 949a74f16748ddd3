"""A session in memory that keeps the contract, and subclasses that each break it in one way."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

from agents.memory import SessionABC, SessionSettings


class Right(SessionABC):
    histories: ClassVar[defaultdict[tuple[Path, str], list[Any]]] = defaultdict(list)

    def __init__(self, session_id: str, directory: Path) -> None:
        self.session_id = session_id
        self.session_settings = SessionSettings()
        self.directory = directory
        self.items = self.histories[directory, session_id]

    async def get_items(self, limit: int | None = None) -> list[Any]:
        if limit is None and self.session_settings:
            limit = self.session_settings.limit
        return copy.deepcopy(
            self.items[max(0, len(self.items) - limit) :] if limit is not None else self.items
        )

    async def add_items(self, items: list[Any]) -> None:
        self.items.extend(copy.deepcopy(items))

    async def pop_item(self) -> Any:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


class PopRaises(Right):
    async def pop_item(self) -> Any:
        return self.items.pop()


class TextOnly(Right):
    async def add_items(self, items: list[Any]) -> None:
        await super().add_items([item for item in items if "content" in item])


class SecondsOnly(Right):
    async def get_items(self, limit: int | None = None) -> list[Any]:
        items = sorted(self.items, key=lambda item: -len(str(item)))
        return items if limit is None else items[-limit:]


class NoDuplicates(Right):
    async def add_items(self, items: list[Any]) -> None:
        for item in items:
            if item not in self.items:
                self.items.append(item)


class CutsTexts(Right):
    async def add_items(self, items: list[Any]) -> None:
        await super().add_items([item for item in items if len(str(item)) < 65_536])


class SharesItems(Right):
    async def add_items(self, items: list[Any]) -> None:
        self.items.extend(items)


class LimitsTheOldest(Right):
    async def get_items(self, limit: int | None = None) -> list[Any]:
        return (await super().get_items(10_000))[:limit]


class PopsTheOldest(Right):
    async def pop_item(self) -> Any:
        return self.items.pop(0) if self.items else None


class ClearsAll(Right):
    async def clear_session(self) -> None:
        for (directory, _), items in self.histories.items():
            if directory == self.directory:
                items.clear()


class IgnoresCase(Right):
    def __init__(self, session_id: str, directory: Path) -> None:
        super().__init__(session_id, directory)
        self.items = self.histories[directory, session_id.casefold()]


class KeepsToItself(Right):
    def __init__(self, session_id: str, directory: Path) -> None:
        super().__init__(session_id, directory)
        self.items = []


class AddsOneByOne(Right):
    async def add_items(self, items: list[Any]) -> None:
        for item in items:
            await asyncio.sleep(0)
            await super().add_items([item])


class PopsInTwoSteps(Right):
    async def pop_item(self) -> Any:
        item = self.items[-1] if self.items else None
        await asyncio.sleep(0)
        if item is not None:
            self.items.remove(item)
        return item


class ForgetsWhenCancelled(Right):
    async def get_items(self, limit: int | None = None) -> list[Any]:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.items.clear()
            raise
        return await super().get_items(limit)


class PopsLater(Right):
    async def pop_item(self) -> Any:
        later = asyncio.create_task(asyncio.sleep(0.01))
        later.add_done_callback(lambda _: self.items and self.items.pop())
        item = self.items[-1] if self.items else None
        await asyncio.shield(later)
        return item


class ClearsOneByOne(Right):
    async def clear_session(self) -> None:
        while self.items:
            await asyncio.sleep(0)
            self.items.pop()


class NeverClears(Right):
    async def clear_session(self) -> None:
        pass


def named(name: str) -> type[Right]:
    return globals()[name]
