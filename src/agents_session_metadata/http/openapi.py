"""The OpenAPI document of the routes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel

from agents_session_metadata.types import JSONObject

if TYPE_CHECKING:
    from .routes import Route


class Problem(BaseModel):
    """The object `error` of an error response."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """An error response."""

    error: Problem


def document(routes: Iterable[Route]) -> JSONObject:
    paths: JSONObject = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Conversations", "version": "1"},
        "paths": paths,
        "components": {"schemas": {each.__name__: _schema(each) for each in (Error, Problem)}},
    }


def _operation(route: Route) -> JSONObject:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    # An item has a type where other answers have an object.
    is_item = route.method == "GET" and route.path.endswith("{item_id}")
    required = ["id", "type"] if is_item else ["object"]
    answer: JSONObject = {"type": "object", "required": required, "additionalProperties": True}
    content = {"application/json": {"schema": answer}}
    if route.path.endswith("/events"):
        content = {"text/event-stream": {"schema": {"type": "string"}}}
    operation: JSONObject = {
        "operationId": getattr(route.run, "__name__", ""),
        "summary": (inspect.getdoc(route.run) or "").partition("\n")[0],
        "parameters": [*in_path, *_parameters(route.query)],
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "An error. `param` is its parameter.", "content": error},
        },
    }
    if route.body is not None:
        body = {"application/json": {"schema": _schema(route.body)}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _parameters(model: type[BaseModel]) -> list[JSONObject]:
    properties: Mapping[str, JSONObject] = _schema(model).get("properties", {})
    parameters = []
    for name, schema in properties.items():
        description = schema.pop("description", "")
        kind = {"type": "string"} if name == "where" else schema
        parameters.append({"name": name, "in": "query", "description": description, "schema": kind})
    return parameters


def _schema(model: type[BaseModel]) -> JSONObject:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return schema
