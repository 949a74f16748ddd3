"""What ChatKit's threads add to the core: their tables, and their items in copies and records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import Feature

from .copies import copy_thread, insert_threads, read_threads
from .feedback import count_feedback
from .rows import ThreadItem
from .tables import THREADS, define


def _export(
    database: Database[Any], connection: Connection, ids: Sequence[str]
) -> Mapping[str, list[dict[str, Any]]]:
    threads = read_threads(database, connection, ids)
    return {name: [_dump(item) for item in items] for name, items in threads.items()}


def _dump(item: ThreadItem) -> dict[str, Any]:
    end = {} if item.history_end is None else {"history_end": item.history_end}
    return {"item_id": item.item_id, "kind": item.kind, "item": json.loads(item.data), **end}


def _parse(part: Any, validated: Callable[..., Any]) -> list[ThreadItem]:
    from .records import parse_items  # pydantic takes long to import

    return parse_items(part, validated)


FEATURE = Feature(
    THREADS,
    ("_thread_items", "_attachments", "_feedback"),
    define,
    fork=copy_thread,
    field="thread_items",
    export=_export,
    parse=_parse,
    load=insert_threads,
    count=count_feedback,
)
