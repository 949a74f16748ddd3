"""The page of runs that work, wait, were interrupted or have failed, and the decisions."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from starlette.responses import RedirectResponse, Response

from agents_session_metadata.errors import RunInterruptedError, SessionBusyError
from agents_session_metadata.runs.runs import SessionRuns
from agents_session_metadata.text import strict_json

from .call import Call, Refused
from .formats import cut
from .list_page import View, read_named

_PAGE: Final = 25
_ONE_LINE: Final = 100
_SHORT: Final = 240
_FEW_LINES: Final = 8
_STATE: Final = "state-"


async def page(call: Call) -> Response:
    view = View.of(call.query)
    found = await SessionRuns(call.catalog).list(where=view.where, limit=_PAGE, cursor=view.cursor)
    return call.render(
        "runs.html",
        view=view,
        runs=found.runs,
        named=await read_named(call.catalog, (run.session_id for run in found.runs)),
        older=view.older(found.next_cursor) if found.next_cursor else None,
        newer=view.newer(),
        anchor=_anchor,
        readable=_readable,
        is_long=_is_long,
        state=_STATE,
        has_form=call.allow_write and bool(found.runs),
    )


async def approve(call: Call) -> Response:
    return await _decide(call, approve=True, message=None)


async def reject(call: Call) -> Response:
    """Reject a call. The model receives the message of the form."""
    message = call.form.get("message", "").strip() or None
    return await _decide(call, approve=False, message=message)


async def _decide(call: Call, *, approve: bool, message: str | None) -> Response:
    session_id, call_id = call.session_id(), call.exact("call")
    if not call_id:
        raise Refused(400, "The form names no call.")
    by = await call.decided_by()
    try:
        await SessionRuns(call.catalog).decide(
            session_id, call_id, approve=approve, message=message, by=by
        )
    except (SessionBusyError, RunInterruptedError):
        raise Refused(409, "The run was resumed. Its decisions are final.") from None
    except LookupError:
        raise Refused(
            404,
            "This call does not wait for a decision any more. Its run was resumed or discarded, or "
            "waits for other calls.",
        ) from None
    except ValueError:
        raise Refused(
            409, "Several calls of this run have the same id, so none of them can be decided."
        ) from None
    return RedirectResponse(f"{_back(call)}#{_anchor(session_id)}", 303)


async def discard(call: Call) -> Response:
    """Give up a run that does not work."""
    try:
        await SessionRuns(call.catalog).discard(call.session_id())
    except SessionBusyError:
        raise Refused(409, "The run works. Wait for its end.") from None
    return RedirectResponse(_back(call), 303)


def _back(call: Call) -> str:
    """Returns the address of the page that the form was on."""
    fields = [name for name in call.form if name.startswith(_STATE)]
    state = {name.removeprefix(_STATE): call.exact(name) for name in fields}
    return call.url("/runs", **View.of(state).parameters())


def _anchor(session_id: str) -> str:
    """Returns a hash as the name of a run on the page: a session id may contain anything."""
    return f"run-{hashlib.sha256(session_id.encode(errors='replace')).hexdigest()[:16]}"


def _is_long(text: str) -> bool:
    return len(text) > _SHORT or text.count("\n") >= _FEW_LINES


def _readable(text: str) -> str:
    """Indent arguments, unless they are short or indenting would change them."""
    if len(text) <= _ONE_LINE and "\n" not in text:
        return text
    try:
        value = strict_json(text, parse_float=_exact)
        return cut(json.dumps(value, ensure_ascii=False, indent=2))
    except ValueError:
        return cut(text)


def _exact(digits: str) -> float:
    found = float(digits)
    if repr(found) != digits:
        raise ValueError("a number would be written in another way")
    return found
