"""The changes that pages offer with `allow_write`. Each is one form; two of them ask first."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from agents_session_metadata import keys
from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.types import Metadata

from . import text
from .call import Call
from .pages import load_session, no_session
from .security import Refused


async def edit(call: Call) -> Response:
    """Change title, tags, pinned and archived; an empty field removes its key.

    A field that has not been edited changes nothing: a form cannot show every value, and another
    writer may have changed it since. Of the tags, only those that were added or removed change.
    """
    session_id = call.session_id()
    given, known = (text.lines(call.form.get(name, "")) for name in ("tags", "shown_tags"))
    wanted: dict[str, Any] = {
        keys.TITLE: call.form.get("title", "").strip() or None,
        keys.PINNED: call.form.get("pinned") == "yes" or None,
        keys.ARCHIVED: call.form.get("archived") == "yes" or None,
    }

    edited = [key for key in wanted if _line(call, key) != _line(call, f"shown_{key}")]

    def change(metadata: Metadata) -> None:
        for key in edited:
            if wanted[key] is None:
                metadata.pop(key, None)
            else:
                metadata[key] = wanted[key]
        if set(given) != set(known):
            _change_tags(metadata, known, given)

    if id_problem(session_id) is not None:
        await load_session(call)
        raise Refused(409, "A session with this id cannot have metadata.")
    await call.catalog.edit_metadata(session_id, change, must_exist=True)
    return call.redirect("/session", id=session_id)


def _change_tags(metadata: Metadata, known: list[str], given: list[str]) -> None:
    """Remove known tags that are not given, and add given tags that were not known."""
    stored: Any = metadata.pop(keys.TAGS, [])
    if not isinstance(stored, list):
        raise Refused(409, "The value of tags is not a list. Reload the session.")
    tags = [each for each in stored if each not in known or each in given]
    tags += [each for each in given if each not in known and each not in tags]
    if tags:
        metadata[keys.TAGS] = tags


def _line(call: Call, name: str) -> str:
    """Returns a field without line breaks, which browsers remove from one-line fields."""
    return call.form.get(name, "").replace("\r", "").replace("\n", "")


async def fork(call: Call) -> Response:
    before = call.item_id("before", required=False)
    try:
        copy = await call.catalog.fork_session(call.session_id(), before=before)
    except ValueError as error:
        raise _cannot(error) from error
    return call.redirect("/session", id=copy.session_id)


async def ask_delete(call: Call) -> Response:
    info, _ = await load_session(call)
    return call.render("ask.html", info=info, action="/delete", before=None, has_form=True)


async def delete(call: Call) -> Response:
    if not await call.catalog.delete_session(call.session_id()):
        raise no_session()
    return call.redirect("/")


async def ask_rewind(call: Call) -> Response:
    info, _ = await load_session(call)
    before = call.item_id("before")
    last = await call.catalog.list_items(info.session_id, limit=1, newest_first=True)
    return call.render(
        "ask.html",
        info=info,
        action="/rewind",
        before=before,
        last=last.items[0].item_id if last.items else 0,
        has_form=True,
    )


async def rewind(call: Call) -> Response:
    session_id, before = call.session_id(), call.item_id("before")
    last = call.item_id("last")
    try:
        await call.catalog.rewind_session(session_id, before=before, expect_last=last)
    except ValueError as error:
        raise _cannot(error) from error
    return call.redirect("/session", id=session_id, **{"from": "end"})


def _cannot(error: ValueError) -> Refused:
    sentence = str(error)
    return Refused(409, f"{sentence[:1].upper()}{sentence[1:]}.")
