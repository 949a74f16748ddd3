"""The routes of a conversation's run: its state, its events, its end and decisions about its calls.

An application has them if it passes its runs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response

from agents_session_metadata.errors import (
    ItemNotFoundError,
    RunInterruptedError,
    RunNotFoundError,
    ScopeError,
    SessionBusyError,
    SessionNotFoundError,
)
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONObject

from . import requests
from .public_items import public_id, shown
from .requests import APIError, call_with, invalid, not_found
from .routes import ONE, Call, Route

if TYPE_CHECKING:
    from agents_session_metadata import PendingCall, RunInfo


async def run(call: Call) -> JSONObject:
    """The run of a conversation, and the calls that wait for a decision."""
    info = await call.runs.get(call.session_id)
    if info is None:
        raise not_found("Run of the conversation", call.session_id)
    return _shown_run(info)


async def run_events(call: Call) -> Response:
    """What the run does, as server-sent events: a snapshot, and then what happens."""
    query: requests.FollowRun = call.query
    after = None
    if query.after is not None:
        info = await call.find(query.after)
        if info is None:
            message = f"Item with id {quoted(query.after)} not found."
            raise APIError(404, message, param="after")
        after = info.item_id
    if query.forever and await call.catalog.get_session(call.session_id, keys=[]) is None:
        raise SessionNotFoundError(call.session_id)
    events = call.runs.follow(call.session_id, after=after, forever=query.forever)
    try:
        # The response begins with an event: without a run, it is 404.
        first = None if query.forever else await anext(events, None)
        if first is None and not query.forever:
            raise not_found("Run of the conversation", call.session_id)
        return call.app.streams.follow_run(call.catalog, _public_events(call, first, events))
    except APIError:
        await events.aclose()
        raise


async def cancel_run(call: Call) -> JSONObject:
    """End the run of a conversation, wherever it works."""
    headers = call.request.headers
    is_json = headers.get("content-type", "").startswith("application/json")
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not is_json:
        # A page of another site can send this request without asking the server first.
        raise APIError(403, "The request comes from another website.", code="cross_site")
    if not await call.runs.cancel(call.session_id):
        raise not_found("Run of the conversation", call.session_id)
    return {"object": "conversation.run", "id": call.session_id, "status": "cancelled"}


async def decide(call: Call) -> JSONObject:
    """Approve or reject a call of a waiting run."""
    body: requests.Decide = call.body
    if body.approve and body.message is not None:
        raise invalid("`message` is for calls that are rejected.", "message")
    allowed, by = call.app.allow_decisions, None
    if callable(allowed):
        by = await call_with(allowed, call.request)
        if not by:
            raise APIError(403, "You cannot decide about calls.", code="decisions_not_allowed")
    try:
        info = await call.runs.decide(
            call.session_id,
            body.call_id,
            approve=body.approve,
            message=body.message,
            by=by if isinstance(by, str) else None,
        )
    except RunNotFoundError:
        raise not_found("Run of the conversation", call.session_id) from None
    except (SessionBusyError, RunInterruptedError):
        message = "The run was resumed. Its decisions are final."
        raise APIError(409, message, code="conversation_busy") from None
    except (SessionNotFoundError, ScopeError):
        raise
    except LookupError:
        raise not_found("Call", body.call_id) from None
    except ValueError as error:
        raise APIError(409, str(error), param="call_id", code="repeated_call_id") from error
    return _shown_run(info)


RUN_ROUTES = (
    Route("GET", f"{ONE}/run", run),
    Route("GET", f"{ONE}/run/events", run_events, requests.FollowRun),
    Route("POST", f"{ONE}/run/cancel", cancel_run, repeatable=False),
)
DECISIONS = Route("POST", f"{ONE}/run/decisions", decide, body=requests.Decide, repeatable=False)


def _shown_run(info: RunInfo) -> JSONObject:
    return {
        "object": "conversation.run",
        "id": info.session_id,
        "status": info.status,
        "agent": info.agent,
        "pending": [_shown_call(each) for each in info.pending],
        "started_at": int(info.started_at.timestamp()),
        "alive_at": int(info.alive_at.timestamp()),
        "attempts": info.attempts,
    }


def _shown_call(call: PendingCall) -> JSONObject:
    names = "call_id", "tool", "arguments", "agent"
    made = call.decision
    decision = None if made is None else {"approve": made.approve, "message": made.message}
    return {**{name: getattr(call, name) for name in names}, "decision": decision}


# ---- events ----


async def _public_events(
    call: Call, first: JSONObject | None, rest: AsyncGenerator[JSONObject, None]
) -> AsyncGenerator[JSONObject, None]:
    """Yields the events with items in the form of the API, and with its ids."""
    async with aclosing(rest):
        if first is not None:
            yield await _public_event(call, first)
        async for event in rest:
            yield await _public_event(call, event)


async def _public_event(call: Call, event: JSONObject) -> JSONObject:
    if event["type"] == "item":
        return {"type": "item", "item": shown(event["item"], event["item_id"])}
    if event["type"] == "snapshot":
        pairs = zip(event["items"], event["item_ids"], strict=True)
        after = event["after"]
        return {
            "type": "snapshot",
            "after": None if after is None else await _public_after(call, after),
            "items": [shown(item, item_id) for item, item_id in pairs],
            "events": event["events"],
        }
    return event


async def _public_after(call: Call, after: int) -> str:
    try:
        info = await call.catalog.get_item(call.session_id, after)
    except (ItemNotFoundError, SessionNotFoundError):
        return public_id(after, None)  # It was deleted in the meantime.
    return public_id(after, info.item)
