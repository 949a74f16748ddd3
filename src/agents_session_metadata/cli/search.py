"""The command that searches messages and titles."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agents_session_metadata.quoting import escaped

from . import command as registry
from .command import place_of
from .options import (
    FilterMetaOption,
    JsonLinesOption,
    JsonOption,
    WhereOption,
    checked,
    parse_where,
    refuse_both,
)
from .output import (
    Records,
    nothing,
    say,
    write,
)

if TYPE_CHECKING:
    from agents_session_metadata.types import SearchHit

_command = partial(registry.command, panel="History")

_LONG_PAGE = 100


@_command("search", "search 'lisbon \"tram 28\" alf*' --meta owner_id=u1")
def search(
    ctx: typer.Context,
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help='Words, "a phrase", a prefix* or -excluded words.'),
    ],
    *,
    where: WhereOption = None,
    meta: FilterMetaOption = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=_LONG_PAGE, help="Hits per page.", show_default="20"),
    ] = None,
    cursor: Annotated[
        str | None, typer.Option(help="Continue after the page that printed this cursor.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print every page.")] = False,
    as_json: JsonOption = False,
    as_lines: JsonLinesOption = False,
) -> int:
    """Find messages and titles that contain all words, newest first.

    Requires the text index: agent-sessions index create '$text' --create-tables.
    """
    refuse_both(as_json=as_json, as_lines=as_lines)
    condition = parse_where(where, meta)
    records = Records(sys.stdout, as_list=as_json, opening='{"hits": [')
    found, complete = 0, True
    with place_of(ctx).open() as (catalog, wait):
        from agents_session_metadata.words import parse_query

        checked(parse_query, query)
        while True:
            page = wait(
                catalog.search(
                    query, condition, limit=limit or (_LONG_PAGE if every else 20), cursor=cursor
                )
            )
            found += len(page.hits)
            complete = complete and page.complete
            for hit in page.hits:
                if as_json or as_lines:
                    records.add(_record(hit))
                else:
                    _write_hit(hit)
            cursor = page.next_cursor
            # A page may end before there is a hit.
            if cursor is None or (found and not every):
                break
    ending = {"next_cursor": cursor, "complete": complete}
    records.close(f"], {json.dumps(ending)[1:]}")
    if not complete:
        say("some messages are not indexed yet; run agent-sessions index refresh '$text'")
    if not found:
        return nothing("no message matches")
    if cursor is not None and not as_json:
        say(f"there are more hits; continue with --cursor {cursor}")
    return 0


def _record(hit: SearchHit) -> dict[str, Any]:
    return {
        "session_id": hit.session_id,
        "item_id": hit.item_id,
        "created_at": hit.created_at.isoformat(),
        "role": hit.role,
        "snippet": hit.snippet,
        "highlights": [list(pair) for pair in hit.highlights],
    }


def _write_hit(hit: SearchHit) -> None:
    """Write a hit: a line that says where it is, then the text with the matches marked."""
    item = "" if hit.item_id is None else f"  {hit.item_id}"
    time = f"{hit.created_at:%Y-%m-%d %H:%M:%S}"
    write(f"{escaped(hit.session_id)}{item}  {time}  {hit.role}")
    marked, end = [], 0
    for start, stop in hit.highlights:
        marked += [hit.snippet[end:start], "[", hit.snippet[start:stop], "]"]
        end = stop
    text = "".join([*marked, hit.snippet[end:]])
    write(f"    {escaped(' '.join(text.split()))}")
