"""Remembers what a request has seen: the state of thread objects, and its own items."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Mapping
from typing import Any, TypeAlias

from chatkit.types import ThreadMetadata

from .thread_fields import State, state_of

Scope: TypeAlias = Mapping[str, Any]
"""What restricts a catalog: its `scope`."""

_REMEMBERED = 10_000
"""The number of created threads that a store remembers."""


class KnownThreads:
    """The state of thread objects when they were last loaded or saved.

    ChatKit keeps a thread object throughout an answer, and saves it as a whole.
    """

    def __init__(self) -> None:
        self._states: dict[int, tuple[weakref.ref[ThreadMetadata], State]] = {}
        self._created: dict[tuple[str, str], None] = {}

    def remember(self, thread: ThreadMetadata, *, created_in: Scope | None = None) -> None:
        """Stores the current state. `created_in` is the scope of a thread that was just created."""
        key, states = id(thread), self._states
        states[key] = weakref.ref(thread, lambda _: states.pop(key, None)), state_of(thread)
        if created_in is not None:
            # ChatKit goes on with another object of the same thread.
            self._created[_creation(created_in, thread.id)] = None
            if len(self._created) > _REMEMBERED:
                del self._created[next(iter(self._created))]

    def state_of(self, thread: ThreadMetadata) -> State | None:
        reference, state = self._states.get(id(thread), (None, None))
        return state if reference is not None and reference() is thread else None

    def was_created(self, scope: Scope, thread_id: str) -> bool:
        return _creation(scope, thread_id) in self._created


def _creation(scope: Scope, thread_id: str) -> tuple[str, str]:
    return json.dumps(scope, sort_keys=True), thread_id


class OwnItems:
    """The items that each request has added, or loaded by their ids.

    A server answers each request in one task, which begins by loading the thread.
    """

    def __init__(self) -> None:
        self._items: weakref.WeakKeyDictionary[asyncio.Task[Any], set[tuple[str, str]]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def _own(self) -> set[tuple[str, str]]:
        task: Any = asyncio.current_task()
        return self._items.setdefault(task, set())

    def begin(self, thread_id: str) -> None:
        """Forgets the items of a thread, because a task may answer several requests in turn."""
        self._own.difference_update([each for each in self._own if each[0] == thread_id])

    def add(self, thread_id: str, item_id: str) -> None:
        self._own.add((thread_id, item_id))

    def has(self, thread_id: str, item_id: str) -> bool:
        return (thread_id, item_id) in self._own
