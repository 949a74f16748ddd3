"""Create, drop and list indexes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from . import command as registry
from .command import place_of
from .options import JsonOption
from .output import nothing, progress, say, shown, write_json, write_table

_command = partial(registry.command, panel="Database")

KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A metadata key, or $updated_at for lists without a filter.",
    ),
]


@_command("index create", "index create owner_id")
def create(ctx: typer.Context, key: KeyArgument, *, as_json: JsonOption = False) -> None:
    """Create an index on a key, for fast lists of sessions.

    Triggers keep the index up to date. If the command is interrupted, run it again to continue.
    """
    with place_of(ctx).open() as (catalog, wait):
        total = wait(catalog.count_sessions())
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
    """Drop an index. Results do not change, but lists can be slower."""
    with place_of(ctx).open() as (catalog, wait):
        dropped = wait(catalog.drop_index(key))
    if as_json:
        write_json({"key": key, "dropped": dropped})
    if not dropped:
        return nothing(f"there is no index on {shown(key)}")
    if not as_json:
        say(f"dropped the index on {shown(key)}")
    return 0


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
