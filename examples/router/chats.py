"""An HTTP interface of an application's own, in one FastAPI router over the public catalog.

    app.state.catalog = SessionCatalog.from_url("sqlite+aiosqlite:///chat.db", create_tables=True)
    app.include_router(router, prefix="/conversations")

`SessionCatalog.create_index("$text")` makes the search work, once per database. Each request has a
header `x-user`: replace `user_catalog` with your authentication.
"""

from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from agents_session_metadata import (
    ItemExistsError,
    ItemInfo,
    ItemNotFoundError,
    KeyReusedError,
    SessionBusyError,
    SessionCatalog,
    SessionChangedError,
    SessionInfo,
    SessionNotFoundError,
    SessionPausedError,
    is_unavailable,
)

CONFLICTS = ItemExistsError, SessionBusyError, SessionChangedError, SessionPausedError


class ErrorRoute(APIRoute):
    """Answers errors of the catalog with their status."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except (SessionNotFoundError, ItemNotFoundError) as error:
                raise HTTPException(404, str(error)) from error
            except CONFLICTS as error:
                raise HTTPException(409, str(error)) from error
            except KeyReusedError as error:
                raise HTTPException(422, str(error)) from error
            except ValueError as error:  # an invalid cursor, query, item id or cut
                raise HTTPException(400, str(error)) from error
            except Exception as error:
                if is_unavailable(error):
                    raise HTTPException(503, "try again", {"Retry-After": "1"}) from error
                raise

        return answer


def user_catalog(request: Request, x_user: Annotated[str, Header()]) -> SessionCatalog:
    catalog: SessionCatalog = request.app.state.catalog
    return catalog.scoped({"owner_id": x_user})


router = APIRouter(route_class=ErrorRoute)
Catalog = Annotated[SessionCatalog, Depends(user_catalog)]
Limit = Annotated[int, Field(ge=1, le=100)]


class Message(BaseModel):
    id: str | None = None
    content: str


class Title(BaseModel):
    title: str = Field(max_length=200)


class Cut(BaseModel):
    before: int | None = None
    expect_last: int | None = None


def shown(info: SessionInfo) -> dict[str, Any]:
    return {"id": info.session_id, "at": info.updated_at, "title": info.metadata.get("title")}


def shown_items(items: Iterable[ItemInfo]) -> list[dict[str, Any]]:
    return [{"id": each.item_id, "at": each.created_at, "item": each.item} for each in items]


@router.get("")
async def conversations(
    catalog: Catalog, cursor: str | None = None, limit: Limit = 20
) -> dict[str, Any]:
    page = await catalog.list_sessions(limit=limit, cursor=cursor, keys=["title"])
    return {"conversations": [shown(info) for info in page], "next": page.next_cursor}


@router.post("", status_code=201)
async def create(catalog: Catalog, message: Message) -> dict[str, str]:
    session = await catalog.create_session(items=[{"role": "user", "content": message.content}])
    return {"id": session.session_id}


@router.get("/search")
async def search(catalog: Catalog, q: str, cursor: str | None = None) -> dict[str, Any]:
    page = await catalog.search(q, cursor=cursor)
    hits = [{"conversation": hit.session_id, "item": hit.item, "text": hit.snippet} for hit in page]
    return {"hits": hits, "next": page.next_cursor}


@router.get("/{name}/items")
async def read(
    catalog: Catalog, name: str, cursor: str | None = None, around: int | None = None
) -> dict[str, Any]:
    page = await catalog.list_items(
        name, limit=50, cursor=cursor, around=around, max_bytes=1_000_000
    )
    if not page.items and await catalog.get_session(name, keys=[]) is None:
        raise SessionNotFoundError(name)
    items = shown_items(page)
    return {"items": items, "next": page.next_cursor, "previous": page.previous_cursor}


@router.post("/{name}/items")
async def append(
    catalog: Catalog, name: str, message: Message, idempotency_key: Annotated[str, Header()]
) -> list[dict[str, Any]]:
    item = {"role": "user", **message.model_dump(exclude_none=True)}
    return shown_items(await catalog.add_items(name, [item], key=idempotency_key, unique_ids=True))


@router.put("/{name}/title")
async def rename(catalog: Catalog, name: str, title: Title) -> None:
    await catalog.set_metadata(name, {"title": title.title}, remove=["title_auto"], must_exist=True)


@router.post("/{name}/fork", status_code=201)
async def fork(catalog: Catalog, name: str, cut: Cut) -> dict[str, str]:
    copy = await catalog.fork_session(name, before=cut.before)
    return {"id": copy.session_id}


@router.post("/{name}/rewind")
async def rewind(catalog: Catalog, name: str, cut: Cut) -> list[dict[str, Any]]:
    turns = 1 if cut.before is None else None
    removed = await catalog.rewind_session(
        name, turns=turns, before=cut.before, expect_last=cut.expect_last
    )
    return shown_items(removed)
