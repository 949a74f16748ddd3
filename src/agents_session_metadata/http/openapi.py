"""The OpenAPI document of the routes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from .routes import Route

_ANSWER: Mapping[str, Any] = {
    "type": "object",
    "required": ["object"],
    "additionalProperties": True,
}


class Problem(BaseModel):
    """The object `error` of an error response."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """An error response."""

    error: Problem


def document(routes: Iterable[Route]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Conversations", "version": "1"},
        "paths": paths,
        "components": {"schemas": {each.__name__: _schema(each) for each in (Error, Problem)}},
    }


def _operation(route: Route) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, Any] = {
        "operationId": getattr(route.run, "__name__", ""),
        "summary": (inspect.getdoc(route.run) or "").partition("\n")[0],
        "parameters": [*in_path, *_parameters(route.query)],
        "responses": {
            "200": {
                "description": "The answer.",
                "content": _content(route),
            },
            "default": {"description": "An error. `param` is its parameter.", "content": error},
        },
    }
    if route.body is not None:
        content = {"application/json": {"schema": _schema(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _content(route: Route) -> Mapping[str, Any]:
    if route.path == "/events":
        return {"text/event-stream": {"schema": {"type": "string"}}}
    return {"application/json": {"schema": _answer(route)}}


def _answer(route: Route) -> Mapping[str, Any]:
    # An item has a type where other answers have an object.
    is_item = route.method == "GET" and route.path.endswith("{item_id}")
    return {**_ANSWER, "required": ["id", "type"]} if is_item else _ANSWER


def _parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    properties: Mapping[str, dict[str, Any]] = _schema(model).get("properties", {})
    parameters = []
    for name, schema in properties.items():
        description = schema.pop("description", "")
        kind = {"type": "string"} if name == "where" else schema
        parameters.append({"name": name, "in": "query", "description": description, "schema": kind})
    return parameters


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return schema
