"""The commands about runs that wait for an approval."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agents_session_metadata.text import ago

from . import options
from .command import command
from .connection import Target
from .options import SESSION, YES, argument, confirm, flag, option, usage
from .output import Answer, Table, counted, nothing, shown

if TYPE_CHECKING:
    from agents_session_metadata.runs.rows import PausedRun


T = TypeVar("T")

_CALL = argument("The call id; or pass --all.", "[CALL]", required=False)
_EVERY = flag("Every call that has no decision.", "--all")
_NAME = option("Who decides; stored with the decision.", "--as")


@command("runs --meta owner_id=u1")
async def runs(
    target: Target,
    condition: Any = options.filters(),
    limit: int = options.limit("Runs per page.", 20),
    cursor: str | None = options.CURSOR,
) -> Answer:
    """List runs that wait for an approval, newest first, with their calls."""
    from agents_session_metadata.runs.paused import PausedRuns

    paused = PausedRuns(target.catalog)
    page = await _unless_unused(target, lambda: paused.list(condition, limit=limit, cursor=cursor))
    if page is None or not page.runs:
        is_used = page is not None and (await paused.list(limit=1)).runs
        document: Any = {"runs": [], "next_cursor": None}
        message = "no run waits for an approval"
        return Answer(document=document, message=message, code=1 if is_used else 0)
    header = ("session", "call", "tool", "arguments", "decision", "paused")
    more = f"there are more runs; continue with --cursor {page.next_cursor}"
    return Answer(
        document=page,
        table=Table(header, _rows(page.runs)),
        message=more if page.next_cursor else None,
    )


@command("approve chat-1 call_7f2 --as user_123")
async def approve(
    target: Target,
    session: str = SESSION,
    call: str | None = _CALL,
    every: bool = _EVERY,
    name: str | None = _NAME,
) -> Answer:
    """Approve a call of a waiting run. A later decision replaces an earlier one.

    The call runs when the application resumes the run.
    """
    return await _decide(target, session, call, every, approve=True, by=name)


@command("reject chat-1 call_7f2 --message 'Not on Friday'")
async def reject(
    target: Target,
    session: str = SESSION,
    call: str | None = _CALL,
    every: bool = _EVERY,
    message: str | None = option("The message that the model receives."),
    name: str | None = _NAME,
) -> Answer:
    """Reject a call of a waiting run. A later decision replaces an earlier one."""
    return await _decide(target, session, call, every, approve=False, by=name, message=message)


@command("discard chat-1 --yes")
async def discard(target: Target, session: str = SESSION, yes: bool = YES) -> Answer:
    """Delete a waiting run without resuming it. History and metadata are kept.

    The history can end with calls that have no output: rewind it before the next run.
    """
    from agents_session_metadata.runs.paused import PausedRuns

    await confirm(f"Discard the waiting run of session {shown(session)}?", yes=yes)
    paused = PausedRuns(target.catalog)
    discarded = bool(await _unless_unused(target, lambda: paused.discard(session)))
    document = {"session_id": session, "discarded": discarded}
    if not discarded:
        return nothing(await target.problem(session, "has no waiting run"), document)
    return Answer(document=document, message="discarded the waiting run")


async def _decide(
    target: Target, session: str, call: str | None, every: bool, **decision: Any
) -> Answer:
    from agents_session_metadata.runs.paused import PausedRuns

    if (call is None) is not every:
        usage("pass either the id of a call or --all; `agent-sessions runs` lists the calls")
    paused = PausedRuns(target.catalog)
    run = await _unless_unused(target, lambda: paused.get(session))
    if run is None:
        return nothing(await target.problem(session, "has no waiting run"))
    calls = [each.call_id for each in run.undecided] if call is None else [call]
    try:
        for each in calls:
            run = await paused.decide(session, each, paused_at=run.paused_at, **decision)
    except LookupError as error:
        raise click.ClickException(str(error)) from None
    if not calls:
        return nothing(f"every call of session {shown(session)} has a decision", run)
    verb = "approved" if decision["approve"] else "rejected"
    left = f"{len(run.undecided)} without a decision"
    return Answer(document=run, message=f"{verb} {counted(len(calls), 'call')}; {left}")


async def _unless_unused(target: Target, work: Callable[[], Awaitable[T]]) -> T | None:
    """Returns None if the table is missing because no run was ever stored."""
    from agents_session_metadata.errors import TablesMissingError

    await target.catalog.get_session("-", keys=[])  # raises an error if all tables are missing
    try:
        return await work()
    except TablesMissingError:
        return None


def _rows(runs: list[PausedRun]) -> Iterator[list[str]]:
    for run in runs:
        paused = ago(run.paused_at)
        for call in run.pending:
            given = call.decision
            decision = "approved" if given and given.approve else "rejected" if given else "waiting"
            arguments = "(encrypted)" if call.arguments is None else shown(call.arguments)
            yield [run.session_id, call.call_id, call.tool or "", arguments, decision, paused]
