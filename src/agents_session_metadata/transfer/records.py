"""The record that an export writes and an import reads: one session as JSON.

Format 1, field by field:

| field | meaning |
|---|---|
| `format` | 1, the version of this format |
| `session_id` | the session's id |
| `created_at`, `updated_at` | ISO 8601 times with an offset from UTC |
| `metadata` | an object: every stored key with its value |
| `items` | a list: the history, oldest first |
| `items[].created_at` | when the item was written, ISO 8601 with an offset |
| `items[].item` | the item, as the SDK's `get_items()` returns it |
| `items[].text` | in place of `item`: the stored text of a row that is not JSON |
| `thread_items` | optional, a list: what a chat interface shows, oldest first |
| `thread_items[].item_id` | the item's id, unique within the session |
| `thread_items[].kind` | what it is, such as `user_message` |
| `thread_items[].item` | the item, as the chat interface stores it |
| `thread_items[].history_end` | of a user message, optional: how many `items` come before it |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Annotated, Any, ClassVar

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.errors import InvalidMetadataError
from agents_session_metadata.text import escaped, quoted
from agents_session_metadata.threads.rows import ThreadItem
from agents_session_metadata.values import finite

FORMAT = 1

_MISSING: Any = object()


def _iso_time(value: object) -> object:
    # Pydantic also takes numbers, and text that spells one, as seconds since 1970.
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d", value):
        raise ValueError("must be an ISO 8601 time with an offset from UTC")
    return value


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


Time = Annotated[AwareDatetime, BeforeValidator(_iso_time), Field(strict=False)]


class Item(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    created_at: Time
    item: Any = _MISSING
    text: str | None = None

    def stored_text(self, path: str, *, ensure_ascii: bool) -> str:
        if (self.item is _MISSING) == (self.text is None):
            raise invalid(path, "must have either `item` or `text`")
        if self.text is not None:
            return self.text
        try:
            return json.dumps(
                self.item, ensure_ascii=ensure_ascii, separators=(",", ":"), allow_nan=False
            )
        except (TypeError, ValueError, RecursionError):
            raise invalid(f"{path}.item", "must be JSON") from None


class ThreadRecord(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    item_id: str
    kind: str
    item: dict[str, Any]
    history_end: Annotated[int, Field(ge=0)] | None = None

    def stored(self, position: int, path: str) -> ThreadItem:
        for name, text in (("item_id", self.item_id), ("kind", self.kind)):
            if id_problem(text) is not None:
                raise invalid(f"{path}.{name}", f"{id_problem(text)}")
        try:
            data = json.dumps(self.item, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise invalid(f"{path}.item", "must be JSON") from None
        return ThreadItem(self.item_id, position, self.kind, data, self.history_end)


class Record(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    session_id: str
    created_at: Time
    updated_at: Time
    metadata: Annotated[dict[Any, Any], BeforeValidator(_plain)]
    items: list[Annotated[Item, BeforeValidator(_plain)]]
    thread_items: list[Annotated[ThreadRecord, BeforeValidator(_plain)]] = []

    def thread(self) -> list[ThreadItem]:
        found: dict[str, ThreadItem] = {}
        for index, item in enumerate(self.thread_items):
            path = f"$.thread_items[{index}]"
            if item.item_id in found:
                raise invalid(f"{path}.item_id", "is not unique")
            found[item.item_id] = item.stored(index + 1, path)
        return list(found.values())


def parse_record(record: object) -> Record:
    """Raises `InvalidMetadataError` that names the first wrong field."""
    fields = _plain(record)
    if isinstance(fields, dict) and "format" not in fields and {"role", "type"} & fields.keys():
        raise invalid("$", "is an item of a history; import records that `export` has written")
    try:
        return Record.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise invalid(_path(first["loc"]), _problem(first)) from None


def dump_item(created_at: datetime, text: str) -> dict[str, Any]:
    # The SDK skips rows that are not JSON; a copy of the database keeps them.
    try:
        item = {"item": json.loads(text, parse_constant=finite, parse_float=finite)}
    except ValueError:
        item = {"text": text}
    return {"created_at": created_at.astimezone(timezone.utc).isoformat(), **item}


def dump_thread_item(item: ThreadItem) -> dict[str, Any]:
    end = {} if item.history_end is None else {"history_end": item.history_end}
    return {"item_id": item.item_id, "kind": item.kind, "item": json.loads(item.data), **end}


def invalid(path: str, problem: str) -> InvalidMetadataError:
    """Returns the error for a path in the record, such as `$.items[2].created_at`."""
    error = InvalidMetadataError(problem, key="record", path=path)
    error.args = (f"{'the record' if path == '$' else escaped(path)} {problem}",)
    return error


def _path(location: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)


def _problem(error: Any) -> str:
    """Describes an error of Pydantic in the words of this package."""
    kind, given = error["type"], type(error["input"]).__name__
    if error["loc"] == ("format",) and kind != "missing":
        return f"must be {FORMAT}, got {quoted(error['input'])}"
    return {
        "missing": "is missing",
        "extra_forbidden": "is an unknown field",
        "model_type": f"must be an object, got {given}",
        "dict_type": f"must be an object, got {given}",
        "list_type": f"must be a list, got {given}",
        "string_type": f"must be a string, got {given}",
        "greater_than_equal": "must not be negative",
        "int_type": f"must be a whole number, got {given}",
        "string_unicode": "must not contain lone surrogates",
    }.get(kind, "must be an ISO 8601 time with an offset from UTC")
