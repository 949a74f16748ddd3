"""What type checkers see of the HTTP interface, the browser and ChatKit's store. Never run."""

# Each ignored error must be there: mypy warns of a needless ignore by itself, pyright is told to.
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from chatkit.server import ChatKitServer
from chatkit.store import Store
from chatkit.types import Attachment, Page, ThreadItem, ThreadMetadata
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import ASGIApp
from typing_extensions import assert_type

from agents_session_metadata import (
    JSONValue,
    SessionCatalog,
    SessionRuns,
    SQLAlchemyMetadataSession,
)
from agents_session_metadata.chatkit import CatalogStore
from agents_session_metadata.http import sessions_app
from agents_session_metadata.web import browser_app


@dataclass
class User:
    """A request context."""

    user_id: str


def scope(request: Request) -> dict[str, JSONValue]:
    """A plain function."""
    return {"owner_id": request.headers["x-user"]}


async def async_scope(request: Request) -> Mapping[str, JSONValue] | None:
    """A coroutine; nothing is 403."""
    return {"owner_id": request.headers["x-user"]} if "x-user" in request.headers else None


def of_user(user: User) -> dict[str, JSONValue]:
    """The scope of a context."""
    return {"owner_id": user.user_id}


def http(catalog: SessionCatalog) -> None:
    """`scope` is required, and may be None."""
    assert_type(sessions_app(catalog, scope=scope), ASGIApp)
    sessions_app(catalog, scope=async_scope, allow_roles=["user"], max_body=1024)
    sessions_app(catalog, scope=None, allow_roles=None, body_timeout=1.5)
    runs = SessionRuns(catalog)
    assert_type(runs.with_catalog(catalog), SessionRuns)
    sessions_app(catalog, scope=scope, runs=runs, allow_decisions=True)
    sessions_app(catalog, scope=scope, runs=runs, allow_decisions=lambda _: "Ana")
    Starlette(routes=[Mount("/v1", sessions_app(catalog, scope=scope))])
    sessions_app(catalog)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sessions_app(
        catalog,
        scope={"owner_id": "u1"},  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    )


def web(catalog: SessionCatalog) -> None:
    """The same for the pages."""
    assert_type(browser_app(catalog, scope=scope), ASGIApp)
    browser_app(catalog, scope=async_scope, allow_write=True, allowed_hosts=["example.org"])
    browser_app(catalog, scope=async_scope, login="/login")
    browser_app(catalog, scope=None)
    browser_app(catalog)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    browser_app(catalog, scope=scope, allow_write="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def chatkit(catalog: SessionCatalog, thread: ThreadMetadata, user: User) -> None:
    """The store is one of the context that its scope takes."""
    store = CatalogStore(catalog, scope=of_user)
    assert_type(store, CatalogStore[User])
    base: Store[User] = store
    assert_type(store.session(thread, user), SQLAlchemyMetadataSession)
    assert_type(await store.load_thread("t1", user), ThreadMetadata)
    assert_type(await store.load_threads(20, None, "desc", user), Page[ThreadMetadata])
    assert_type(await base.load_thread_items("t1", None, 20, "asc", user), Page[ThreadItem])
    assert_type(
        await store.purge_attachments(older_than=timedelta(days=1)),
        list[Attachment],
    )
    other: CatalogStore[str] = CatalogStore(catalog, scope=None, all_sessions=True)
    await other.delete_thread("t1", "anna")
    await store.load_thread("t1", "anna")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    CatalogStore(catalog)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def chatkit_of_any_context(catalog: SessionCatalog, thread: ThreadMetadata) -> None:
    """Without brackets, the context is Any, as in ChatKit."""
    store: CatalogStore = CatalogStore(catalog, scope=lambda user: {"owner_id": user.user_id})
    assert_type(store, CatalogStore[Any])
    explicit: CatalogStore[Any] = store
    await explicit.save_thread(thread, "anna")
    assert_type(await AnyStore(catalog, scope=None).load_thread("t1", 1), ThreadMetadata)
    assert_type(CatalogStore(catalog, scope=None), CatalogStore[Any])


class AnyStore(CatalogStore):
    """A subclass without brackets."""


class Server(ChatKitServer[User]):
    """A server takes the store."""

    def __init__(self, catalog: SessionCatalog) -> None:
        super().__init__(CatalogStore(catalog, scope=of_user))
