"""Helpers that every part of the store uses."""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from chatkit.store import NotFoundError, Store, StoreItemType, TContext
from pydantic import BaseModel
from sqlalchemy import Connection

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted
from agents_session_metadata.threads.tables import THREADS
from agents_session_metadata.types import JSONValue

T = TypeVar("T")
Work = Callable[[Connection, Queries], T]

_PREFIXES: dict[StoreItemType, str] = {
    "thread": "thr",
    "message": "msg",
    "tool_call": "tc",
    "workflow": "wf",
    "task": "tsk",
    "attachment": "atc",
    "sdk_hidden_context": "shcx",
}


class StorePart(Store[TContext]):
    _catalog: SessionCatalog
    _scope: Callable[[TContext], Mapping[str, JSONValue]] | None

    def _within(self, context: TContext) -> SessionCatalog:
        if self._scope is None:
            return self._catalog
        values: Any = self._scope(context)
        if inspect.isawaitable(values):
            if inspect.iscoroutine(values):
                values.close()
            raise TypeError("scope must be a plain function; its result is not awaited")
        return self._catalog.scoped(values)


async def run_read(store: ScopedStore, work: Work[T]) -> T:
    await store.database.ensure(THREADS)
    return await store.database.read(work)


async def run_write(store: ScopedStore, work: Work[T]) -> T:
    await store.database.ensure(THREADS)
    return await store.database.write(work)


def stored_text(model: BaseModel) -> str:
    # Not as ChatKit answers clients, which would leave out metadata.
    return json.dumps(model.model_dump(mode="json", by_alias=True), separators=(",", ":"))


def new_id(kind: StoreItemType) -> str:
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"


def missing(kind: str, name: str) -> NotFoundError:
    return NotFoundError(f"{kind} {quoted(name)} does not exist")


def check_id(kind: str, name: str) -> None:
    problem = id_problem(name)
    if problem is not None:
        raise ValueError(f"{kind} id {quoted(name)} {problem}")
