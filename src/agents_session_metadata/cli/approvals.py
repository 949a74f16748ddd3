"""The commands about runs that wait for an approval."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agents_session_metadata.text import ago

from . import command as registry
from .command import place_of
from .options import (
    Failure,
    FilterMetaOption,
    JsonOption,
    SessionArgument,
    WhereOption,
    parse_where,
    usage,
)
from .output import counted, nothing, say, shown, write_json, write_table

if TYPE_CHECKING:
    from agents_session_metadata.runs.rows import PausedRun

_command = partial(registry.command, panel="Approvals")

_PAGE, _LONG_PAGE = 20, 1000

CallArgument = Annotated[
    str | None, typer.Argument(metavar="CALL", help="The call id; or pass --all.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every call that has no decision.")]
ByOption = Annotated[str | None, typer.Option(help="Who decides.")]


@_command("waiting", "waiting --meta owner_id=u1")
def waiting(
    ctx: typer.Context,
    *,
    where: WhereOption = None,
    meta: FilterMetaOption = None,
    limit: Annotated[int, typer.Option(min=1, max=_LONG_PAGE, help="Runs per page.")] = _PAGE,
    cursor: Annotated[
        str | None, typer.Option(help="Continue after the page that printed this cursor.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """List paused runs that wait for an approval, newest first, with their calls."""
    condition = parse_where(where, meta)
    with place_of(ctx).open() as (catalog, wait):
        from agents_session_metadata.runs.paused import PausedRuns

        page = wait(PausedRuns(catalog).list(condition, limit=limit, cursor=cursor))
    if as_json:
        runs = [record_of_run(run) for run in page.runs]
        write_json({"runs": runs, "next_cursor": page.next_cursor})
    elif page.runs:
        _write_runs(page.runs)
    if not page.runs:
        return nothing("no run waits for an approval")
    if page.next_cursor is not None and not as_json:
        say(f"there are more runs; continue with --cursor {page.next_cursor}")
    return 0


@_command("approve", "approve chat-1 call_7f2 --by user_123")
def approve(
    ctx: typer.Context,
    session: SessionArgument,
    call: CallArgument = None,
    *,
    every: AllOption = False,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> int:
    """Approve a call of a paused run. A later decision replaces an earlier one.

    The call runs when the application resumes the run.
    """
    return _decide(ctx, session, call, every=every, as_json=as_json, approve=True, by=by)


@_command("reject", "reject chat-1 call_7f2 --message 'Not on Friday'")
def reject(
    ctx: typer.Context,
    session: SessionArgument,
    call: CallArgument = None,
    *,
    every: AllOption = False,
    message: Annotated[
        str | None, typer.Option(help="The message that the model receives.")
    ] = None,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> int:
    """Reject a call of a paused run. A later decision replaces an earlier one."""
    return _decide(
        ctx, session, call, every=every, as_json=as_json, approve=False, message=message, by=by
    )


def _decide(
    ctx: typer.Context,
    session: str,
    call: str | None,
    *,
    every: bool,
    as_json: bool,
    **decision: Any,
) -> int:
    if (call is None) is not every:
        usage("pass either the id of a call or --all; `agent-sessions waiting` lists the calls")
    with place_of(ctx).open() as (catalog, wait):
        from agents_session_metadata.runs.paused import PausedRuns

        paused = PausedRuns(catalog)
        run = wait(paused.get(session))
        if run is None:
            return nothing(f"session {shown(session)} has no paused run")
        calls = [each.call_id for each in run.undecided] if call is None else [call]
        try:
            for each in calls:
                run = wait(paused.decide(session, each, paused_at=run.paused_at, **decision))
        except LookupError as error:
            raise Failure(str(error)) from None
    if as_json:
        write_json(record_of_run(run))
    if not calls:
        return nothing(f"every call of session {shown(session)} has a decision")
    say(
        f"{'approved' if decision['approve'] else 'rejected'} {counted(len(calls), 'call')}; "
        f"{len(run.undecided)} without a decision"
    )
    return 0


def record_of_run(run: PausedRun) -> dict[str, Any]:
    return {
        "session_id": run.session_id,
        "agent": run.agent,
        "paused_at": run.paused_at.isoformat(),
        "claimed_until": run.claimed_until and run.claimed_until.isoformat(),
        "crashed": run.crashed,
        "pending": [
            {
                "call_id": call.call_id,
                "tool": call.tool,
                "arguments": call.arguments,
                "agent": call.agent,
                "decision": call.decision
                and {
                    "approve": call.decision.approve,
                    "message": call.decision.message,
                    "by": call.decision.by,
                    "at": call.decision.at.isoformat(),
                },
            }
            for call in run.pending
        ],
    }


def _write_runs(runs: list[PausedRun]) -> None:
    rows = []
    for run in runs:
        state = "crashed" if run.crashed else "claimed" if run.claimed_until else ""
        ends = [ago(run.paused_at), state]
        if not run.pending:
            rows.append([run.session_id, "", "", "", "ready to resume", *ends])
        for call in run.pending:
            decision = "waiting"
            if call.decision is not None:
                decision = "approved" if call.decision.approve else "rejected"
            arguments = "(encrypted)" if call.arguments is None else shown(call.arguments)
            rows.append([run.session_id, call.call_id, call.tool or "", arguments, decision, *ends])
    write_table(("session", "call", "tool", "arguments", "decision", "paused", "claim"), rows)
