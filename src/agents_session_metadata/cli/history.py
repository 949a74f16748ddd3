"""The commands that read, cut and copy histories."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agents_session_metadata.text import content_texts, escaped

from . import command as registry
from .command import place_of
from .options import (
    JsonLinesOption,
    JsonOption,
    MetaOption,
    SessionArgument,
    YesOption,
    checked,
    confirm,
    parse_pairs,
    refuse_both,
    usage,
)
from .output import Records, counted, nothing, say, shown, write, write_json

if TYPE_CHECKING:
    from agents_session_metadata.types import ItemInfo

_command = partial(registry.command, panel="History")

_PAGE, _LONG_PAGE = 50, 1000


@_command("history", "history chat-1 --limit 20 --newest-first")
def history(
    ctx: typer.Context,
    session: SessionArgument,
    *,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=_LONG_PAGE, help="Items per page.", show_default="50"),
    ] = None,
    cursor: Annotated[
        str | None, typer.Option(help="Continue after the page that printed this cursor.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print every page.")] = False,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Print the newest items first.")
    ] = False,
    as_json: JsonOption = False,
    as_lines: JsonLinesOption = False,
) -> int:
    """Print the history of a session, oldest items first.

    The number before each item is its id. Pass it to rewind or fork.
    """
    refuse_both(as_json=as_json, as_lines=as_lines)
    records = Records(sys.stdout, as_list=as_json, opening='{"items": [')
    found = 0
    with place_of(ctx).open() as (catalog, wait):
        while True:
            page = wait(
                catalog.list_items(
                    session,
                    limit=limit or (_LONG_PAGE if every else _PAGE),
                    cursor=cursor,
                    newest_first=newest_first,
                )
            )
            found += len(page.items)
            for each in page.items:
                if as_json or as_lines:
                    records.add(_record(each))
                else:
                    _write_item(each)
            cursor = page.next_cursor
            if not every or cursor is None:
                break
    records.close(f'], "next_cursor": {json.dumps(cursor)}}}')
    if cursor is not None and not as_json:
        say(f"there are more items; continue with --cursor {cursor}")
    return 0 if found else nothing(f"session {shown(session)} has no items")


@_command("rewind", "rewind chat-1 --turns 1 --yes")
def rewind(
    ctx: typer.Context,
    session: SessionArgument,
    *,
    turns: Annotated[
        int | None, typer.Option(min=1, help="Remove this many turns from the end.")
    ] = None,
    before: Annotated[
        int | None,
        typer.Option(metavar="ITEM", help="Remove this item and everything after it."),
    ] = None,
    expect_last: Annotated[
        int | None,
        typer.Option(metavar="ITEM", help="Fail if this is not the newest item."),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove the last items of a session's history. Metadata is kept.

    Requires --turns or --before. A turn begins with a user message. Item ids are those that history
    prints. A call is never separated from its output.
    """
    if (turns is None) == (before is None):
        usage("pass either --turns or --before")
    what = f"everything from item {before} on" if turns is None else counted(turns, "turn")
    confirm(f"Remove {what} of session {shown(session)}?", yes=yes)
    with place_of(ctx).open() as (catalog, wait):
        removed = wait(
            catalog.rewind_session(session, turns=turns, before=before, expect_last=expect_last)
        )
    if as_json:
        write_json({"session_id": session, "removed": [_record(each) for each in removed]})
    if not removed:
        return nothing(f"session {shown(session)} has no turns")
    if not as_json:
        say(f"removed {counted(len(removed), 'item')}")
    return 0


@_command("fork", "fork chat-1 chat-2 --before 17")
def fork(
    ctx: typer.Context,
    session: SessionArgument,
    new_session: Annotated[
        str | None,
        typer.Argument(metavar="NEW", help="The id of the copy. Default: a random id."),
    ] = None,
    *,
    before: Annotated[
        int | None, typer.Option(metavar="ITEM", help="Copy only the items before this one.")
    ] = None,
    meta: MetaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a session with history and metadata, and print the id of the copy.

    The id of the original is stored under forked_from, the item of --before under forked_before.
    """
    values = parse_pairs(meta, "--meta")
    with place_of(ctx).open() as (catalog, wait):
        from agents_session_metadata.core.rows import check_id

        if new_session is not None:
            checked(check_id, new_session)
        copy = wait(catalog.fork_session(session, new_session, metadata=values, before=before))
        if as_json:
            metadata = wait(copy.get_metadata())
            write_json({"session_id": copy.session_id, "metadata": metadata})
    if not as_json:
        write(escaped(copy.session_id))


def _record(info: ItemInfo) -> dict[str, Any]:
    return {
        "item_id": info.item_id,
        "created_at": info.created_at.isoformat(),
        "item": info.item,
    }


def _write_item(info: ItemInfo) -> None:
    item: Any = info.item
    kind, lines = "item", [shown(item)]
    if isinstance(item, dict):
        kind = str(item.get("role") or item.get("type") or "item")
        if item.get("__enc__") == 1:
            kind, lines = "encrypted", []
        elif "role" in item:
            texts = content_texts(item.get("content"))
            lines = [line for text in texts for line in text.split("\n")]
        else:
            rest = {name: each for name, each in item.items() if name != "type"}
            lines = [shown(f"{name}: {shown(each)}") for name, each in rest.items()]
    write(f"{info.item_id}  {info.created_at:%Y-%m-%d %H:%M:%S}  {escaped(kind)}")
    for line in lines:
        write(f"    {escaped(line, chr(9))}".rstrip())
