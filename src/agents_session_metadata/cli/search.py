"""The command that searches messages and titles."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from . import command as registry
from .command import place_of
from .options import FilterMetaOption, WhereOption, parse_where

_command = partial(registry.command, panel="History")


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
) -> None:
    """Find messages and titles that contain all words. Not available in this version."""
    condition = parse_where(where, meta)
    with place_of(ctx).open() as (catalog, wait):
        wait(catalog.search(query, condition))
