"""Create, drop, list and refresh indexes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from . import command as registry
from .command import place_of
from .options import JsonOption
from .output import nothing, progress, say, shown, write_json, write_table

_TEXT = "$text"

_command = partial(registry.command, panel="Database")

KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A metadata key, $updated_at for lists without a filter, or $text for search.",
    ),
]


@_command("index create", "index create owner_id")
def create(ctx: typer.Context, key: KeyArgument, *, as_json: JsonOption = False) -> None:
    """Create an index on a key, for fast lists of sessions, or on $text, for search.

    Triggers keep the index up to date. If the command is interrupted, run it again to continue.
    """
    with place_of(ctx).open() as (catalog, wait):
        # The text index counts messages and titles.
        total = None if key == _TEXT else wait(catalog.count_sessions())
        with progress(f"Indexing {shown(key)}", total) as counter:
            created = wait(catalog.create_index(key, progress=counter.reach))
    if as_json:
        write_json({"key": key, "created": created})
    elif created:
        say(f"created the index on {shown(key)}")
    else:
        say(f"the index on {shown(key)} exists already")


@_command("index drop", "index drop owner_id")
def drop(ctx: typer.Context, key: KeyArgument, *, as_json: JsonOption = False) -> int:
    """Drop an index. Results do not change, but lists can be slower.

    Without the index $text, search is not available.
    """
    with place_of(ctx).open() as (catalog, wait):
        dropped = wait(catalog.drop_index(key))
    if as_json:
        write_json({"key": key, "dropped": dropped})
    if not dropped:
        return nothing(f"there is no index on {shown(key)}")
    if not as_json:
        say(f"dropped the index on {shown(key)}")
    return 0


@_command("index refresh", "index refresh '$text'")
def refresh(ctx: typer.Context, key: KeyArgument, *, as_json: JsonOption = False) -> None:
    """Index the queued messages of other writers, such as the plain SDK. For $text only.

    All other indexes are always up to date.
    """
    with (
        place_of(ctx).open() as (catalog, wait),
        progress(f"Indexing {shown(key)}") as counter,
    ):
        done = wait(catalog.refresh_index(key, progress=counter.reach))
    if as_json:
        write_json({"key": key, "indexed": done})
    else:
        say(f"indexed {done:,} messages and titles")


@_command("index list", "index list --count")
def list_(
    ctx: typer.Context,
    *,
    count: Annotated[
        bool, typer.Option("--count", help="Count the entries, which takes time.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the indexes, and whether each is complete."""
    with place_of(ctx).open() as (catalog, wait):
        indexes = wait(catalog.list_indexes(count=count))
    if as_json:
        write_json(
            [
                {"key": each.key, "complete": each.complete, "entries": each.entries}
                for each in indexes
            ]
        )
        return
    if not indexes:
        say("there is no index")
        return
    rows = [[each.key, "yes" if each.complete else "no"] for each in indexes]
    header = ["key", "complete"]
    if count:
        header.append("entries")
        for row, each in zip(rows, indexes, strict=True):
            row.append(f"{each.entries:,}")
    write_table(header, rows)
