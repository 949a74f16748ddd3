"""An MCP server: a few tools on a catalog, for agents that are to know about sessions.

The catalog is bound to its scope before any tool sees it, so no argument leads out of it. Answers
are JSON text, paged and capped; what was cut is named, with the way to get it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from mcp.types import ToolAnnotations
from pydantic import ConfigDict, Field
from sqlalchemy.exc import DBAPIError

from .catalog import SessionCatalog
from .errors import SessionMetadataError
from .types import SessionInfo

Result = TypeVar("Result")

ANSWER_CHARACTERS = 20_000
"""The most that an answer holds, counted as it is sent: JSON text, within a string of JSON."""

LISTED_VALUE_CHARACTERS = 1_000
"""The longest value that a list of sessions brings."""

NAMES_CHARACTERS = 1_000
"""Beyond so many characters, a list of sessions names no more keys that it left out."""

ERROR_CHARACTERS = 2_000
"""The longest error: it may quote what it was given."""

_WORDS_CHARACTERS = 600
"""Kept for the numbers and words that say how to go on."""

READ_TOOLS = ("get_metadata", "list_sessions", "find_sessions")
WRITE_TOOLS = ("set_metadata", "delete_metadata")

_READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
_WRITING = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_DESTRUCTIVE = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)


Session = Annotated[str, Field(description="The session's id.", max_length=255)]
Key = Annotated[
    str | None, Field(description="A metadata key; all of them when left out.", max_length=255)
]
Where = Annotated[
    dict[str, Any] | None,
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
    int, Field(description="The next_offset of the answer before, with the same question.", ge=0)
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
    """A tool that refuses what it does not know.

    Dropping an argument, or taking true for 1, would answer another question.
    """
    made = Tool.from_function(
        _told(function),
        name=f"{prefix}{function.__name__}",
        annotations=annotations,
        structured_output=False,
    )
    given = made.fn_metadata.arg_model
    settings = {"model_config": ConfigDict(extra="forbid", strict=True), "__module__": __name__}
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
            text = str(error)
            end = "" if len(text) <= ERROR_CHARACTERS else "…"
            raise ToolError(f"{text[:ERROR_CHARACTERS]}{end}") from error
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

        What is too long for one answer comes in parts: go on with offset=next_offset until there
        is none. A value under left_out is read by its key.
        """
        info = await self._catalog.get_session(session, keys=None if key is None else [key])
        stored = {} if info is None else info.metadata
        answer: dict[str, Any] = {"session": session, "exists": info is not None}
        if key is None:
            return _text(answer | self._keys(stored, offset, _room(answer)))
        answer |= {"key": key, "stored": key in stored}
        return _text(answer | _part(stored.get(key), offset, _room(answer)))

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
        # A cursor has a session's id in it.
        longest = max((len(json.dumps(info.session_id)) for info in page.sessions), default=0)
        whole = room = _room() - 2 * longest
        for info in page.sessions:
            record = self._listed(info, whole)
            room -= _size(record)
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

    def _keys(self, stored: dict[str, Any], offset: int, whole: int) -> dict[str, Any]:
        """The keys from `offset` on for which there is room; a value too long for any is named."""
        if offset and offset >= len(stored):
            raise ValueError(f"offset is {offset}, but there are only {len(stored)} keys")
        metadata: dict[str, Any] = {}
        left_out: dict[str, int] = {}
        room = whole
        end = offset
        for key in sorted(stored)[offset:]:
            entry, length = {key: stored[key]}, {key: len(_text(stored[key]))}
            is_long = _size(entry) > whole
            room -= _size(length if is_long else entry)
            if room < 0 and end > offset:
                break
            if is_long:
                left_out |= length
            else:
                metadata |= entry
            end += 1
        words = [self._left_out] if left_out else []
        answer: dict[str, Any] = {"metadata": metadata}
        if left_out:
            answer["left_out"] = left_out
        if end < len(stored):
            answer["next_offset"] = end
            words.append(f"{len(stored) - end} keys follow; go on with offset={end}")
        return answer | ({"cut": "; ".join(words)} if words else {})

    def _listed(self, info: SessionInfo, room: int) -> dict[str, Any]:
        """A session in a list: values while there is room, shorter ones first."""
        record: dict[str, Any] = {
            "session": info.session_id,
            "created_at": info.created_at.isoformat(timespec="seconds"),
            "updated_at": info.updated_at.isoformat(timespec="seconds"),
            "metadata": {},
        }
        room -= _size(record) + NAMES_CHARACTERS + _WORDS_CHARACTERS
        lengths = {key: len(_text(value)) for key, value in info.metadata.items()}
        kept = set()
        for key in sorted(lengths, key=lambda key: lengths[key]):
            room -= _size({key: info.metadata[key]})
            if room < 0 or lengths[key] > LISTED_VALUE_CHARACTERS:
                break
            kept.add(key)
        record["metadata"] = {key: value for key, value in info.metadata.items() if key in kept}
        left_out = {key: lengths[key] for key in info.metadata if key not in kept}
        if left_out:
            named = list(left_out)
            while _size({key: left_out[key] for key in named}) > NAMES_CHARACTERS:
                named.pop()
            record["left_out"] = {key: left_out[key] for key in named}
            record["cut"] = self._left_out
            if len(named) < len(left_out):
                record["cut"] += (
                    f"; {len(left_out) - len(named)} more keys are left out, "
                    f"{self._prefix}get_metadata(session) names them"
                )
        return record

    @property
    def _left_out(self) -> str:
        return f"left_out has lengths; {self._prefix}get_metadata(session, key) reads a value"


def _part(value: Any, offset: int, room: int) -> dict[str, Any]:
    """A value, or as much of its text as there is room for."""
    text = _text(value)
    if offset == 0 and _size(value) <= room:
        return {"value": value}
    if offset >= len(text):
        raise ValueError(f"offset must be under {len(text)}, the length of the value's text")
    rest = text[offset : offset + room]
    end = offset + bisect_right(range(1, len(rest) + 1), room, key=lambda n: _size(rest[:n]))
    part = {"json_text": text[offset:end], "offset": offset, "characters": len(text)}
    if end == len(text):
        return part
    cut = f"{len(text) - end} characters follow; go on with offset={end}"
    return part | {"next_offset": end, "cut": cut}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _size(value: Any) -> int:
    """The characters that a value takes in an answer: what is sent is its text, as a string."""
    return len(json.dumps(_text(value), ensure_ascii=False))


def _room(answer: dict[str, Any] | None = None) -> int:
    """What an answer that has begun so has room for, beside the words."""
    return ANSWER_CHARACTERS - _WORDS_CHARACTERS - _size(answer)
