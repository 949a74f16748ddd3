"""Arguments of tools: their types, their schema, and errors about them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from agents_session_metadata import FILTER_OPERATORS
from agents_session_metadata.text import strict_json
from agents_session_metadata.types import JSONObject

_SHOWN_CHARACTERS = 80
_SHOWN_ERRORS = 3
_UNPUBLISHED = ("title", "default", "minLength", "maxLength")
"""Schema keywords that strict mode does not know. Defaults are part of the descriptions."""

_SCALARS: list[JSONObject] = [{"type": name} for name in ("string", "number", "boolean", "null")]
_ANY_VALUE = {"anyOf": [*_SCALARS, {"type": "array", "items": {"anyOf": _SCALARS}}]}
"""A strict schema cannot describe an object with arbitrary keys, so objects are left out of it."""


def parse_json(text: str, prefix: str = "") -> Any:
    try:
        return strict_json(text)
    except ValueError as error:
        raise ValueError(f"{prefix}not valid JSON: {error}") from None


def _object_or_text(given: Any) -> Any:
    return parse_json(given) if isinstance(given, str) else given


def _filter_or_text(given: Any) -> Any:
    # A form that is left empty sends an empty string.
    return None if given == "" else _object_or_text(given)


# Objects are published as JSON text: a strict schema cannot describe one with arbitrary keys, and
# some clients cannot send one where null is allowed too. The server accepts both forms.
Where = Annotated[
    JSONObject | None,
    BeforeValidator(_filter_or_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
]
Values = Annotated[JSONObject, BeforeValidator(_object_or_text), WithJsonSchema({"type": "string"})]
Value = Annotated[Any, WithJsonSchema(_ANY_VALUE)]
OrderBy = Literal[
    "updated_at", "-updated_at", "created_at", "-created_at", "session_id", "-session_id"
]

_DESCRIPTIONS = {
    "session": "The session's id.",
    "by": "A metadata key, such as title or agent. session is then its value, which only one "
    "session may have. Default: session is an id.",
    "key": "A metadata key. Default, and null: every key.",
    "where": "A filter: a JSON object or its JSON text, such as "
    '{"status": "active", "priority": {"$gte": 7}}. Operators: '
    f"{' '.join(FILTER_OPERATORS)}; $and, $or and $not combine filters; $created_at, "
    "$updated_at and $session_id can be used in place of a key. Default: every session.",
    "metadata": "Values by key that the sessions must have: a JSON object or its JSON text, such "
    'as {"role": "reviewer", "team": "alpha"}.',
    "value": "Any JSON value, stored without conversion: a string stays a string. If you cannot "
    "send an object or a nested list, send its JSON text with value_is_json=true.",
    "value_is_json": "true: value is JSON text, which is parsed before it is stored. Default: "
    "false.",
    "create": "true: create the session if it does not exist. Default: false (an error).",
    "all": "true, without key: delete every metadata key. Default: false.",
    "status": "Only runs with this status. Default: all.",
    "limit": "Sessions per page. Default: 20.",
    "query": 'The words to find, such as: lisbon "tram 28" alf* -bus',
    "by_session": "true: only the newest hit of each session. Default: false.",
    "newest_first": "true: newest items first. Default: false, oldest first.",
    "cursor": "The next_cursor of the previous page; the other arguments must be the same. "
    "Default: the first page.",
    "offset": "The next_offset of the previous answer; the other arguments must be the same. "
    "Default: 0.",
    "order_by": "The sort order; - means descending. Default: -updated_at.",
}
_BOUNDS: dict[str, JSONObject] = {
    "session": {"max_length": 255},
    "by": {"max_length": 255},
    "key": {"max_length": 255},
    "query": {"max_length": 500},
    "limit": {"ge": 1, "le": 100},
    "offset": {"ge": 0},
}


def arguments_model(
    function: Callable[..., Any], descriptions: dict[str, str], bound_session: str | None
) -> type[BaseModel]:
    """Builds a strict model that refuses unknown arguments.

    Dropping one, or accepting true for 1, would answer another question. `descriptions` replace the
    usual ones. If there is a `bound_session`, the argument `session` is optional.
    """
    described = _DESCRIPTIONS | descriptions
    _, *parameters = inspect.signature(function, eval_str=True).parameters.values()
    types: dict[str, tuple[Any, Any]] = {
        each.name: (each.annotation, ... if each.default is each.empty else each.default)
        for each in parameters
    }
    if bound_session is None and "session" in types:
        types["by"] = (str | None, None)
    elif "session" in types:
        types["session"] = (str | None, None)
        described["session"] = "The session's id. Default: the only session of this server."
    fields: dict[str, Any] = {}
    for name, (kind, default) in types.items():
        field = Field(description=described[name], **_BOUNDS.get(name, {}))
        fields[name] = (Annotated[kind, field], default)
    config = ConfigDict(extra="forbid", strict=True)
    return create_model(function.__name__, __config__=config, **fields)


def input_schema(model: type[BaseModel]) -> JSONObject:
    """Returns a schema that the strict mode of OpenAI's API accepts."""
    schema = model.model_json_schema()
    del schema["title"]
    schema["properties"] = {name: _published(each) for name, each in schema["properties"].items()}
    return schema


def _published(schema: JSONObject) -> JSONObject:
    kept = {key: value for key, value in schema.items() if key not in _UNPUBLISHED}
    if "anyOf" in kept:
        kept["anyOf"] = [_published(each) for each in kept["anyOf"]]
    return kept


def describe_problems(error: ValidationError, model: type[BaseModel]) -> str:
    problems = error.errors(include_url=False)
    lines = []
    for each in problems[:_SHOWN_ERRORS]:
        name = _short(".".join(map(str, each["loc"])))
        if each["type"] == "extra_forbidden":
            lines.append(f"unknown argument {name}; expected {', '.join(model.model_fields)}")
        elif each["type"] == "missing":
            lines.append(f"missing argument {name}")
        elif each["type"] == "value_error":
            lines.append(f"{name}: {each['msg'].removeprefix('Value error, ')}")
        else:
            message = each["msg"][:1].lower() + each["msg"][1:]
            lines.append(f"{name}: {message}, got {_shown(each['input'])}")
    if len(problems) > _SHOWN_ERRORS:
        lines.append(f"{len(problems) - _SHOWN_ERRORS} more problems")
    return "; ".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "an array"
    try:
        return _short(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError):
        return f"a value of type {type(value).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
