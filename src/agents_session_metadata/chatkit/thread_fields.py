"""Where the fields of a ChatKit thread are in the metadata of its session.

Only those that have changed are written: `KnownThreads` remembers the state of thread objects.
"""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from chatkit.types import ThreadMetadata
from pydantic import ValidationError

from agents_session_metadata.keys import CHATKIT, TITLE
from agents_session_metadata.types import Metadata, SessionInfo

State: TypeAlias = Mapping[tuple[str, ...], Any]
"""The values of a thread's fields that are not the default, by their places in metadata."""

Scope: TypeAlias = Mapping[str, Any]
"""What restricts a catalog: its `scope`."""

_REMEMBERED = 10_000
"""The number of created threads that a store remembers."""
_OWN = ("status", "allowed_image_domains", "created_at")
_PLACES: dict[str, tuple[str, ...]] = {
    "title": (TITLE,),
    **{name: (CHATKIT, name) for name in _OWN},
}


def state_of(thread: ThreadMetadata) -> State:
    domains, status = thread.allowed_image_domains, thread.status
    values = {
        "title": thread.title,
        "status": None if status.type == "active" else status.model_dump(exclude_none=True),
        "allowed_image_domains": None if domains is None else list(domains),
        "created_at": thread.created_at.isoformat(),
    }
    state = {_PLACES[name]: value for name, value in values.items() if value is not None}
    # As it is, not as text: what is not JSON is refused when it is stored.
    own = copy.deepcopy(thread.metadata)
    return {**state, **{(CHATKIT, "metadata", key): value for key, value in own.items()}}


def assigned(thread: ThreadMetadata) -> State:
    """Returns a state in which every field that was set explicitly has another value."""
    return {_PLACES[name]: None for name in _PLACES.keys() & thread.model_fields_set}


def thread_of(info: SessionInfo) -> ThreadMetadata:
    """Reads only the fields that `write_changes` stores.

    A caller who can write metadata must not make one thread look like another, nor prevent others
    from being listed.
    """
    title, own = info.metadata.get(TITLE), info.metadata.get(CHATKIT)
    given: dict[str, Any] = {
        "id": info.session_id,
        "created_at": info.created_at,
        "title": title if isinstance(title, str) else None,
    }
    stored = own if isinstance(own, dict) else {}
    for name in {*_OWN, "metadata"} & stored.keys():
        with suppress(ValidationError):
            ThreadMetadata.model_validate({**given, name: stored[name]})
            given[name] = stored[name]
    return ThreadMetadata.model_validate(given)


def write_changes(metadata: Metadata, before: State, after: State) -> None:
    for place in {**before, **after}:
        if place in before and place in after and before[place] == after[place]:
            continue
        target: dict[str, Any] = metadata
        for name in place[:-1]:
            inner = target.get(name)
            target[name] = dict(inner) if isinstance(inner, dict) else {}
            target = target[name]
        if place in after:
            target[place[-1]] = after[place]
        else:
            target.pop(place[-1], None)


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
