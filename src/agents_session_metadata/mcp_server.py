"""An MCP server: a few tools on a catalog, for agents that are to know about sessions.

The catalog is bound to its scope before any tool sees it, so no argument leads out of it. Answers
are JSON text, paged and capped; what was cut is named, with the way to get it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from mcp.types import ToolAnnotations
from pydantic import BeforeValidator, ConfigDict, Field
from sqlalchemy.exc import DBAPIError

from .catalog import SessionCatalog
from .errors import SessionMetadataError
from .types import SessionInfo

Result = TypeVar("Result")

ANSWER_CHARACTERS = 20_000
"""The most that an answer holds, give or take what says that it was cut."""

LISTED_VALUE_CHARACTERS = 1_000
"""The longest value that a list of sessions brings."""

NAMES_CHARACTERS = 1_000
"""Beyond so many characters, no more names of keys that were cut are told."""

READ_TOOLS = ("get_metadata", "list_sessions", "find_sessions")
WRITE_TOOLS = ("set_metadata", "delete_metadata")

_READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
_WRITING = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_DESTRUCTIVE = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)


def _from_text(value: Any) -> Any:
    """Some clients give objects as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


Session = Annotated[str, Field(description="The session's id.")]
Key = Annotated[str | None, Field(description="A metadata key; all of them when left out.")]
Where = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_from_text),
    Field(
        description=(
            "A filter, such as {'status': 'active', 'priority': {'$gte': 7}}. Operators: $eq $ne "
            "$in $nin $gt $gte $lt $lte $exists $contains $prefix, $and $or $not around filters, "
            "and $created_at, $updated_at, $session_id in place of a key."
        )
    ),
]
Values = Annotated[
    dict[str, Any],
    BeforeValidator(_from_text),
    Field(description="Values by key, all of which must be stored, such as {'role': 'polecat'}."),
]
Value = Annotated[
    Any,
    Field(
        description="Any JSON value, stored as it is given: a string stays a string.",
        json_schema_extra={"type": ["string", "number", "boolean", "null", "array", "object"]},
    ),
]
Limit = Annotated[int, Field(description="Sessions a page.", ge=1, le=100)]
Cursor = Annotated[
    str | None, Field(description="The next_cursor of the page before, with the same question.")
]
Offset = Annotated[
    int, Field(description="Where to go on in the text of a value that was cut.", ge=0)
]
OrderBy = Annotated[
    Literal["updated_at", "-updated_at", "created_at", "-created_at", "session_id", "-session_id"],
    Field(description="What to sort by; - for descending."),
]


def make_server(
    catalog: SessionCatalog, *, allow_write: bool = False, tool_prefix: str = ""
) -> MCPServer:
    """Make a server whose tools see what a catalog sees.

    Args:
        catalog: The catalog, bound to its scope.
        allow_write: Whether to offer tools that change metadata.
        tool_prefix: What goes before the tools' names.

    Returns:
        The server; `await server.run_stdio_async()` runs it.
    """
    tools = _Tools(catalog, tool_prefix)
    offered = [_tool(getattr(tools, name), tool_prefix, _READ_ONLY) for name in READ_TOOLS]
    if allow_write:
        offered += [
            _tool(tools.set_metadata, tool_prefix, _WRITING),
            _tool(tools.delete_metadata, tool_prefix, _DESTRUCTIVE),
        ]
    return MCPServer(
        "agent-sessions",
        version=version("agents-session-metadata"),
        instructions=(
            "Metadata of conversations (sessions): who runs them, what they are about, where they "
            f"stand. {tool_prefix}list_sessions and {tool_prefix}find_sessions find sessions, "
            f"{tool_prefix}get_metadata reads one in full."
        ),
        tools=offered,
        log_level="WARNING",
        subscriptions=False,
    )


class _AsGiven(FuncMetadata):
    """Arguments as the client gave them.

    The ready-made reading turns a string that looks like JSON into what it looks like: the value
    "[1]" would be stored as a list.
    """

    def pre_parse_json(self, data: dict[str, Any]) -> dict[str, Any]:
        return data


def _tool(
    function: Callable[..., Awaitable[str]], prefix: str, annotations: ToolAnnotations
) -> Tool:
    """A tool that refuses unknown arguments: dropping one would answer another question."""
    made = Tool.from_function(
        _told(function),
        name=f"{prefix}{function.__name__}",
        annotations=annotations,
        structured_output=False,
    )
    given = made.fn_metadata.arg_model
    settings = {"model_config": ConfigDict(extra="forbid"), "__module__": __name__}
    strict: Any = type(given.__name__, (given,), settings)
    return made.model_copy(
        update={
            "fn_metadata": _AsGiven(arg_model=strict),
            "parameters": strict.model_json_schema(),
        }
    )


def _told(function: Callable[..., Awaitable[Result]]) -> Callable[..., Awaitable[Result]]:
    """Errors of the caller's, as errors that the model reads."""

    @wraps(function)
    async def run(**arguments: Any) -> Result:
        try:
            return await function(**arguments)
        except (SessionMetadataError, ValueError, TypeError) as error:
            raise ToolError(str(error)) from error
        except (DBAPIError, OSError) as error:
            # Its text may tell of the server; the log has it.
            raise ToolError("the database does not answer; try again later") from error

    return run


class _Tools:
    """The tools: their names, arguments and descriptions are what a model sees."""

    def __init__(self, catalog: SessionCatalog, prefix: str) -> None:
        self._catalog = catalog
        self._prefix = prefix

    async def get_metadata(self, session: Session, key: Key = None, offset: Offset = 0) -> str:
        """Read the metadata of a session: one key, or all when key is left out.

        A value too long for one answer comes in parts: go on with offset.
        """
        keys = None if key is None else [key]
        info = await self._catalog.get_session(session, keys=keys)
        answer: dict[str, Any] = {"session": session, "exists": info is not None}
        stored = {} if info is None else info.metadata
        if key is None:
            answer["metadata"], cut = self._fitting(stored, ANSWER_CHARACTERS, ANSWER_CHARACTERS)
            return _text({**answer, **cut})
        answer |= {"key": key, "stored": key in stored}
        text = _text(stored.get(key))
        if offset == 0 and len(text) <= ANSWER_CHARACTERS:
            return _text({**answer, "value": stored.get(key)})
        if offset >= len(text):
            raise ValueError(f"offset must be under {len(text)}, the length of the value's text")
        end = offset + ANSWER_CHARACTERS
        answer |= {"json_text": text[offset:end], "offset": offset, "characters": len(text)}
        if end < len(text):
            answer["next_offset"] = end
            answer["cut"] = f"{len(text) - end} characters follow; go on with offset={end}"
        return _text(answer)

    async def list_sessions(
        self,
        where: Where = None,
        limit: Limit = 20,
        cursor: Cursor = None,
        order_by: OrderBy = "-updated_at",
    ) -> str:
        """List sessions with their metadata, a page at a time; most recently active first.

        Go on with cursor=next_cursor and the same where and order_by until next_cursor is null.
        """
        page = await self._catalog.list_sessions(
            where, limit=limit, cursor=cursor, order_by=order_by
        )
        shown: list[dict[str, Any]] = []
        room = ANSWER_CHARACTERS
        for info in page.sessions:
            record = self._listed(info, room if not shown else ANSWER_CHARACTERS)
            room -= len(_text(record))
            if shown and room < 0:
                break
            shown.append(record)
        answer: dict[str, Any] = {"sessions": shown, "next_cursor": page.next_cursor}
        if len(shown) < len(page.sessions):
            # The page ends where the room did; its cursor is that of a shorter page.
            shorter = await self._catalog.list_sessions(
                where, limit=len(shown), cursor=cursor, order_by=order_by, keys=[]
            )
            answer["next_cursor"] = shorter.next_cursor
            answer["cut"] = (
                f"{len(shown)} of {len(page.sessions)} sessions fit this answer; "
                "go on with cursor=next_cursor"
            )
        return _text(answer)

    async def find_sessions(
        self, metadata: Values, limit: Limit = 20, cursor: Cursor = None
    ) -> str:
        """Find the sessions that have all these metadata values, most recently active first."""
        if not metadata:
            raise ValueError(
                f"metadata needs a key and a value; {self._prefix}list_sessions lists every session"
            )
        for key in metadata:
            if key.startswith("$"):
                raise ValueError(
                    f"metadata takes plain keys and values, not {key}; "
                    f"{self._prefix}list_sessions takes filters as where"
                )
        where = {key: {"$eq": value} for key, value in metadata.items()}
        return await self.list_sessions(where, limit, cursor)

    async def set_metadata(self, session: Session, key: str, value: Value) -> str:
        """Store one metadata value of a session; other keys stay as they are.

        A session that does not exist yet is made.
        """
        await self._catalog.set_metadata(session, {key: value})
        return _text({"session": session, "key": key, "stored": True})

    async def delete_metadata(self, session: Session, key: Key = None) -> str:
        """Remove one metadata key of a session, or all of them when key is left out.

        Its history stays.
        """
        keys = None if key is None else [key]
        deleted = await self._catalog.delete_metadata(session, keys)
        return _text({"session": session, "deleted": deleted})

    def _listed(self, info: SessionInfo, room: int) -> dict[str, Any]:
        metadata, cut = self._fitting(info.metadata, room, LISTED_VALUE_CHARACTERS)
        return {
            "session": info.session_id,
            "created_at": info.created_at.isoformat(timespec="seconds"),
            "updated_at": info.updated_at.isoformat(timespec="seconds"),
            "metadata": metadata,
            **cut,
        }

    def _fitting(
        self, metadata: dict[str, Any], room: int, longest: int
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The values that fit, shorter ones first, and a word about the others."""
        sizes = {key: len(_text(value)) for key, value in metadata.items()}
        kept = set()
        for key in sorted(metadata, key=lambda key: sizes[key]):
            room -= sizes[key] + len(_text(key)) + 2
            if room < 0 or sizes[key] > longest:
                break
            kept.add(key)
        cut = [key for key in metadata if key not in kept]
        if not cut:
            return metadata, {}
        named: list[str] = []
        for key in cut:
            named.append(f"{key} ({sizes[key]:,} characters)")
            if len(", ".join(named)) > NAMES_CHARACTERS:
                break
        more = f" and {len(cut) - len(named)} more" if len(cut) > len(named) else ""
        read = f"read each with {self._prefix}get_metadata(session, key)"
        note = f"left out: {', '.join(named)}{more}; {read}"
        return {key: value for key, value in metadata.items() if key in kept}, {"cut": note}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
