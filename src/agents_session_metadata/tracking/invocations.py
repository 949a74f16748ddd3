"""The tool calls of a session: the newest ones, and totals per tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from agents_session_metadata import keys
from agents_session_metadata.lifecycle import AnySession, list_of, newest
from agents_session_metadata.text import quoted
from agents_session_metadata.types import Metadata
from agents_session_metadata.values import storable_text


@dataclass
class Invocation:
    """A tool call as it is stored."""

    id: str
    tool: str
    ms: int
    ok: bool
    at: str
    ref: str | None = None


async def add_invocation(
    session: AnySession,
    invocation_id: str,
    tool: str,
    *,
    duration: timedelta | None = None,
    ok: bool = True,
    at: datetime | None = None,
    ref: str | None = None,
) -> Metadata:
    """Record a call of a tool that runs outside the SDK, as `SessionTracker` records calls.

    ```python
    await add_invocation(session, "inv_001", "compile", duration=timedelta(seconds=3))
    await session.find_sessions_by_metadata({"invocations": {"$contains": "inv_001"}})
    ```

    Its id is added to `invocations`, its details to `invocation_details`, both for the newest 50
    calls. The call is counted in `tool_calls`, and its tool is in `tools_used`.

    Args:
        session: The session, or an `EncryptedSession` around it.
        invocation_id: The id of the call.
        tool: The name of the tool.
        duration: How long the call took; without it, it counts as zero.
        ok: Whether the call succeeded.
        at: When the call began, an aware datetime; now by default.
        ref: Where the result of the call is, such as a path or a URL.

    Returns:
        The metadata afterwards.

    Raises:
        ValueError: If the id or the name is empty, `duration` is negative, or `at` is not aware.
    """
    for name, given in (("invocation_id", invocation_id), ("tool", tool)):
        if not given:
            raise ValueError(f"{name} must be a string that is not empty, got {quoted(given)}")
    took = timedelta(0) if duration is None else duration
    if took < timedelta(0):
        raise ValueError(f"duration must not be negative, got {duration}")
    moment = datetime.now(timezone.utc) if at is None else at
    if moment.utcoffset() is None:
        raise ValueError(f"at must be an aware datetime, got {moment}")
    call = Invocation(
        storable_text(invocation_id),
        storable_text(tool),
        took // timedelta(milliseconds=1),
        ok,
        moment.astimezone(timezone.utc).isoformat(),
        None if ref is None else storable_text(ref),
    )
    return await session.edit_metadata(lambda stored: record_invocations(session, stored, [call]))


def record_invocations(session: AnySession, stored: Metadata, calls: Sequence[Invocation]) -> None:
    totals = stored[keys.TOOL_CALLS] = _added(list_of(stored, keys.TOOL_CALLS), calls)
    names = [*list_of(stored, keys.TOOLS_USED), *(total[0] for total in totals)]
    stored[keys.TOOLS_USED] = [*dict.fromkeys(each for each in names if isinstance(each, str))]
    added = [
        {name: each for name, each in vars(call).items() if each is not None} for call in calls
    ]
    kept: Any = newest(session, [*list_of(stored, keys.INVOCATION_DETAILS), *added])
    stored[keys.INVOCATION_DETAILS] = kept
    stored[keys.INVOCATIONS] = [call["id"] for call in kept]


def _added(stored: Iterable[Any], calls: Iterable[Invocation]) -> list[list[Any]]:
    """Adds calls to `[tool, calls, milliseconds]` entries; drops entries of another shape."""
    totals: dict[str, list[int]] = {}
    for entry in stored:
        if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str):
            totals[entry[0]] = [number if type(number) is int else 0 for number in entry[1:]]
    for call in calls:
        total = totals.setdefault(call.tool, [0, 0])
        total[0] += 1
        total[1] += call.ms
    return [[tool, *total] for tool, total in totals.items()]
