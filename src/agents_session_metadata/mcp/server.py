"""The MCP server: checks arguments, calls tools, and turns every failure into an answer."""

from __future__ import annotations

import json
import logging
import re
from importlib.metadata import version
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp.types import Tool as PublishedTool
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import StatementError

from agents_session_metadata import SessionCatalog, is_unavailable
from agents_session_metadata.errors import SessionMetadataError, TablesMissingError
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONObject
from agents_session_metadata.values import check_id

from .answers import ERROR_CHARACTERS, HISTORY_NOTE, NOTE, MetadataAnswer, output_schema, to_text
from .arguments import arguments_model, describe_problems, input_schema
from .tools import TOOLS, ServedCatalog, Tool

logger: logging.Logger = logging.getLogger(__name__)


def make_server(
    catalog: SessionCatalog,
    *,
    allow_write: bool = False,
    tool_prefix: str = "",
    session: str | None = None,
    plain: bool = False,
    create: bool = False,
) -> MetadataServer:
    """Create an MCP server for a catalog. Its tools are restricted to the catalog's scope.

    Database errors are logged by the logger `agents_session_metadata.mcp.server`. Answers
    contain only the kind of the error. Create the engine with `pool_pre_ping=True`, so that the
    first call after a lost connection works.

    Args:
        catalog: The catalog, restricted to its scope.
        allow_write: Whether to add the tools that change metadata. They are not added for a
            read-only catalog.
        tool_prefix: A prefix for the names of the tools: letters, digits, `_` and `-`.
        session: The id of a session to which the tools are restricted. It does not have to exist.
            The argument `session` of every tool becomes optional and defaults to it, and any other
            id is an error.
        plain: Whether `get_metadata` answers the metadata, or `{"role": "reviewer"}` for one key,
            and nothing else, if it fits and is not corrupt. The tool then has no output schema.
            Sessions in lists have `id`, and `name` if that key is set.
        create: Whether `set_metadata` creates a session that does not exist, without
            `create=true`.

    Returns:
        The server; `await server.run_stdio_async()` runs it.

    Raises:
        TypeError: If `session` is not a string.
        ValueError: If `session` cannot be a session's id, or `tool_prefix` part of a tool's name.
    """
    if session is not None:
        if not isinstance(session, str):
            raise TypeError(f"session must be a session id (str), got {type(session).__name__}")
        check_id(session)
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,40}", tool_prefix):
        raise ValueError(
            f"tool_prefix must be at most 40 letters, digits, _ and -, got {quoted(tool_prefix)}"
        )
    allow_write = allow_write and not catalog.read_only
    offered = [each for each in TOOLS if allow_write or not each.writes]
    return MetadataServer(ServedCatalog(catalog, tool_prefix, session, plain, create), offered)


class MetadataServer(Server[Any]):
    """An MCP server with tools on a catalog. Use `make_server` to create one."""

    def __init__(self, view: ServedCatalog, tools: list[Tool]) -> None:
        self._view = view
        self._tools: dict[str, tuple[Tool, type[BaseModel]]] = {}
        self._published: list[PublishedTool] = []
        for each in tools:
            name = f"{view.prefix}{each.name}"
            model = arguments_model(each.function, each.descriptions, view.session)
            self._tools[name] = each, model
            is_plain = view.plain and each.answer is MetadataAnswer
            self._published.append(
                PublishedTool(
                    name=name,
                    title=each.name.replace("_", " ").capitalize(),
                    description=each.description,
                    input_schema=input_schema(model),
                    output_schema=None if is_plain else output_schema(each.answer),
                    annotations=ToolAnnotations(
                        read_only_hint=not each.writes,
                        destructive_hint=each.writes,
                        idempotent_hint=True,
                        open_world_hint=False,
                    ),
                )
            )
        super().__init__(
            "agent-sessions",
            version=version("agents-session-metadata"),
            instructions=_instructions(view),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def run_stdio_async(self) -> None:
        """Serve one client on standard input and output, until the input ends."""
        async with stdio_server() as (lines, output):
            await self.run(lines, output, self.create_initialization_options())

    async def _list_tools(
        self, _context: ServerRequestContext[Any], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=self._published)

    async def _call_tool(
        self, _context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        try:
            answer = await self._answer(params.name, params.arguments or {})
            text = to_text(answer)
            return CallToolResult(
                content=[TextContent(type="text", text=text)], structured_content=json.loads(text)
            )
        except ValidationError as error:
            _, model = self._tools[params.name]
            text = describe_problems(error, model)
        except RecursionError:
            text = "the arguments are nested too deeply"
        except Exception as error:  # noqa: BLE001  # logged unless it is the caller's
            text = self._describe(params.name, error)
        if len(text) > ERROR_CHARACTERS:
            text = f"{text[:ERROR_CHARACTERS]}…"
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)

    async def _answer(self, name: str, given: JSONObject) -> JSONObject:
        if name not in self._tools:
            raise ValueError(f"unknown tool {name[:80]}; expected one of {', '.join(self._tools)}")
        tool, model = self._tools[name]
        checked = model.model_validate(given)
        arguments = {field: getattr(checked, field) for field in model.model_fields}
        return await tool.function(self._view, **await self._view.resolve(arguments))

    def _describe(self, tool: str, error: Exception) -> str:
        """Returns the text that a model may read. Details for operators go to the log."""
        # The parameters of a statement are metadata of users: they stay out of the log.
        cause = getattr(error, "orig", None) or error
        kind = type(cause).__name__
        problem = None
        if is_unavailable(error):
            problem = "the database cannot be reached or is overloaded; try again later"
        elif isinstance(error, StatementError):
            problem = "the database refused a statement; do not try again"
        if problem is not None:
            logger.error("%s: database error %s: %s", tool, kind, cause)
            return f"database error ({kind}): {problem}"
        if isinstance(error, TablesMissingError):
            logger.error("%s: %s", tool, error)
            return f"{str(error).partition('; create ')[0]}; ask the operator, do not try again"
        if isinstance(error, (SessionMetadataError, ValueError)):
            return str(error)
        logger.error("%s: unexpected error", tool, exc_info=error)
        return f"unexpected error ({kind}); the server's log has the details"


def _instructions(view: ServedCatalog) -> str:
    prefix = view.prefix
    own = "" if view.session is None else " You can access only your own session."
    return (
        "Metadata of conversations (sessions): owner, title, tags and status. "
        f"{prefix}list_sessions and {prefix}find_sessions find sessions, {prefix}get_metadata "
        f"reads all metadata of one, {prefix}get_history its messages, {prefix}search_sessions "
        f"finds messages by words, {prefix}list_runs lists "
        f"the runs that wait for an approval.{own} {NOTE} {HISTORY_NOTE}"
    )
