"""The part of an exported record that has the items of a thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from agents_session_metadata.errors import invalid_record
from agents_session_metadata.types import MAX_KEY_LENGTH

from .rows import ItemRow

Name = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH, pattern=r"^[^\x00]*$")]


class ThreadRecord(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    item_id: Name
    kind: Name
    item: dict[str, Any]
    history_end: Annotated[int, Field(ge=0)] | None = None

    def stored(self, position: int, path: str) -> ItemRow:
        try:
            data = json.dumps(self.item, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise invalid_record(f"{path}.item", "must be JSON") from None
        return ItemRow(self.item_id, position, self.kind, data, self.history_end)


def parse_items(part: Any, validated: Callable[..., Any]) -> list[ItemRow]:
    found: dict[str, ItemRow] = {}
    for index, item in enumerate(validated(list[ThreadRecord], part)):
        path = f"$.thread_items[{index}]"
        if item.item_id in found:
            raise invalid_record(f"{path}.item_id", "is not unique")
        found[item.item_id] = item.stored(index + 1, path)
    return list(found.values())
