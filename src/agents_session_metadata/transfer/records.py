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
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from agents_session_metadata.core.features import features
from agents_session_metadata.errors import invalid_record
from agents_session_metadata.text import quoted


def _iso_time(value: object) -> object:
    # Pydantic also takes numbers, and text that spells one, as seconds since 1970.
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d", value):
        raise ValueError("must be an ISO 8601 time with an offset from UTC")
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_iso_time), Field(strict=False)]


class Item(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    created_at: Time
    item: Any = None
    text: str | None = None

    def stored_text(self, path: str, *, ensure_ascii: bool) -> str:
        if ("item" in self.model_fields_set) == (self.text is not None):
            raise invalid_record(path, "must have either `item` or `text`")
        if self.text is not None:
            return self.text
        try:
            return json.dumps(
                self.item, ensure_ascii=ensure_ascii, separators=(",", ":"), allow_nan=False
            )
        except (TypeError, ValueError, RecursionError):
            raise invalid_record(f"{path}.item", "must be JSON") from None


class Record(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    format: Literal[1]
    session_id: str
    created_at: Time
    updated_at: Time
    metadata: dict[Any, Any]
    items: list[Item]


def parse_record(record: object) -> tuple[Record, dict[str, Any]]:
    """Returns the record, and the parts of features by their names.

    Raises `InvalidMetadataError` that names the first wrong field.
    """
    fields: Any = dict(record) if isinstance(record, Mapping) else record
    raw = {}
    if isinstance(record, Mapping):
        own = [feature for feature in features() if feature.field and feature.field in record]
        raw = {feature: fields.pop(feature.field) for feature in own}
    parsed: Record = validated(Record, fields)
    parts = {
        feature.name: feature.parse(part, partial(validated, path=f"$.{feature.field}"))
        for feature, part in raw.items()
    }
    return parsed, parts


_adapter = cache(TypeAdapter)


def validated(kind: Any, value: object, path: str = "$") -> Any:
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        problem = f"is invalid: {first['msg']}"
        if first["type"] == "model_type":
            problem = "must be an object"
        if first["type"] not in {"missing", "extra_forbidden"}:
            given = first["input"]
            name = type(given).__name__
            problem += f", got {quoted(given) if isinstance(given, int) else name}"
        raise invalid_record(path + "".join(steps), problem) from None
