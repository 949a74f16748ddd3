"""What is measured: the operations on metadata, and who does them."""

from __future__ import annotations

from itertools import islice
from typing import Any, Protocol

from sqlalchemy import URL

from .data import LARGEST_OWNER, STATUSES, Corpus
from .measure import Operation

GET = "get all metadata of one"
COUNT = "count by owner"
FIND = "find by owner"
STATUS = "owner and status"
PRIORITY = "owner and priority ≥ 7"
TAGGED = "list contains a tag"
COUNT_TAGGED = "count by tag"
NEWEST = "newest 20 with metadata"
SET = "set 5 keys"
OPERATIONS = (GET, COUNT, FIND, STATUS, PRIORITY, TAGGED, COUNT_TAGGED, NEWEST, SET)
"""In this order: what writes comes last, as it changes what the others find."""

OURS, PLAIN = "this package", "plain EAV"
TAG = "tag-001"
LEAST_PRIORITY = 7
PAGE = 20


class Party(Protocol):
    """Something that keeps metadata of sessions, in a database of its own."""

    name: str
    url: URL

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""

    def operations(self) -> dict[str, Operation]:
        """Those of `OPERATIONS` that it can do, by name.

        What they are given is the number of the call. Those that find give a list, newest first.
        """

    async def close(self) -> None:
        """Let go of the database."""


def status(number: int) -> str:
    """The status to ask for: each in turn."""
    return STATUSES[number % len(STATUSES)]


def changes(number: int) -> dict[str, Any]:
    """Five scalars to write, under keys that are stored."""
    return {
        "owner_id": LARGEST_OWNER,
        "title": f"changed {number}",
        "status": status(number),
        "priority": number % 10,
        "cost": number / 8,
    }


def written_ids(corpus: Corpus) -> list[str]:
    """Sessions to write to; the largest owner's, so that it keeps as many as it has."""
    found = (one.session_id for one in corpus if one.metadata["owner_id"] == LARGEST_OWNER)
    return list(islice(found, 50))
