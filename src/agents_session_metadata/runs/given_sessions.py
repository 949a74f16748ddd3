"""Sessions that callers pass, and what is inside their wrappers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from agents_session_metadata.dialects.urls import may_be_same
from agents_session_metadata.quoting import quoted
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.session import SQLAlchemyMetadataSession


def underlying(session: Any) -> Iterator[Any]:
    """A session and those that it is wrapped around, whatever the attribute is called."""
    seen: dict[int, Any] = {}
    waiting = [session]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen and callable(getattr(each, "add_items", None)):
            seen[id(each)] = each
            yield each
            waiting += _attributes(each)


def _attributes(wrapper: Any) -> Iterator[Any]:
    # Not `getattr`: a wrapper may forward it to the session inside.
    yield from getattr(wrapper, "__dict__", {}).values()
    for kind in type(wrapper).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            with suppress(AttributeError):
                yield object.__getattribute__(wrapper, name)


def is_encrypted(session: Any) -> bool:
    """Whether a session is wrapped in the SDK's `EncryptedSession`."""
    # Importing it would need the library that it encrypts with.
    module = sys.modules.get("agents.extensions.memory.encrypt_session")
    kind = getattr(module, "EncryptedSession", None)
    return kind is not None and any(isinstance(each, kind) for each in underlying(session))


def sessions_inside(session: Any, store: ScopedStore) -> list[SQLAlchemyMetadataSession]:
    """The sessions of this package in the store's database that a session stands for.

    Raises:
        ValueError: If there are some, but all of them are in another database.
    """
    found = [
        each
        for each in underlying(session)
        if isinstance(each, SQLAlchemyMetadataSession) and each.session_id == session.session_id
    ]
    same = [each for each in found if _may_share(each._store, store)]
    if found and not same:
        raise ValueError(
            f"session {quoted(session.session_id)} is in another database than the catalog of the "
            "paused runs"
        )
    return same


def _may_share(one: ScopedStore, other: ScopedStore) -> bool:
    """Whether two stores may have the same tables."""
    if one.database.names != other.database.names:
        return False
    first, second = one.database.engine, other.database.engine
    if first.sync_engine is second.sync_engine:
        return True
    return may_be_same(first.url, second.url)
