"""The commands about runs: their list, and the approvals that they wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import click

from agents_session_metadata.text import ago

from . import options, output
from .app import cli
from .connection import Database, database_options
from .options import confirm, flag, usage
from .output import NothingFoundError, Pages, Table, counted, show, shown

if TYPE_CHECKING:
    from agents_session_metadata import RunInfo

_call_argument = click.argument("call", required=False, help="The call id; or pass --all.")
_all_option = flag("--all", "every", help="Every call that has no decision.")
_as_option = click.option("--as", "by_name", help="Who decides; stored with the decision.")


@cli.command(epilog="Example: agent-sessions runs --status waiting --meta owner_id=u1")
@click.option(
    "--status",
    shell_complete=options.completing("running", "waiting", "interrupted", "failed"),
    help="Only running, waiting, interrupted or failed runs.",
)
@options.filters
@options.pages("runs", 20)
@database_options()
async def runs(database: Database, status: Any, where: Any, pages: Pages) -> None:
    """List runs that work, wait for an approval, were interrupted or failed, newest first."""
    from agents_session_metadata import RunStatus, SessionRuns

    statuses = get_args(RunStatus)
    if status not in (None, *statuses):
        usage(f"--status must be one of {', '.join(statuses)}, got {shown(status)}")
    header = ("session", "call", "tool", "arguments", "decision", "status", "started")
    async with database.open() as catalog:
        read = partial(SessionRuns(catalog).list, status, where)
        found = await pages.write(read, lambda runs: Table(header, _rows(runs)).write())
    if not found:
        problem = f"no run is {status}" if status else "there are no runs"
        await show(message=problem + output.hint(where))


@cli.command(epilog="Example: agent-sessions approve chat-1 call_7f2 --as user_123")
@options.session
@_call_argument
@_all_option
@_as_option
@database_options(by=True)
async def approve(
    database: Database, session: str, call: str | None, every: bool, by_name: str | None
) -> None:
    """Approve a call of a waiting run. A later decision replaces an earlier one.

    The call runs when the application resumes the run.
    """
    await _decide(database, session, call, every, approve=True, by=by_name)


@cli.command(epilog="Example: agent-sessions reject chat-1 call_7f2 --message 'Not on Friday'")
@options.session
@_call_argument
@_all_option
@click.option("--message", help="The message that the model receives.")
@_as_option
@database_options(by=True)
async def reject(
    database: Database,
    session: str,
    call: str | None,
    every: bool,
    message: str | None,
    by_name: str | None,
) -> None:
    """Reject a call of a waiting run. A later decision replaces an earlier one."""
    await _decide(database, session, call, every, approve=False, by=by_name, message=message)


@cli.command(epilog="Example: agent-sessions discard chat-1 --yes")
@options.session
@options.yes
@database_options(by=True)
async def discard(database: Database, session: str, yes: bool) -> None:
    """Give up a run that waits, was interrupted or has failed.

    Its messages stay. Calls without an output are removed.
    """
    from agents_session_metadata import SessionRuns

    await confirm(f"Discard the run of session {shown(session)}?", yes=yes)
    async with database.open() as catalog:
        discarded = await SessionRuns(catalog).discard(session)
        document = {"session_id": session, "discarded": discarded}
        if not discarded:
            raise await output.nothing_in(catalog, session, "has no run", document)
    await show(document, message="discarded the run")


async def _decide(
    database: Database, session: str, call: str | None, every: bool, **decision: Any
) -> None:
    from agents_session_metadata import SessionRuns

    if (call is None) is not every:
        usage("pass either the id of a call or --all; `agent-sessions runs` lists the calls")
    async with database.open() as catalog:
        runs = SessionRuns(catalog)
        run = await runs.get(session)
        if run is None:
            raise await output.nothing_in(catalog, session, "has no run")
        calls = [each.call_id for each in run.undecided] if call is None else [call]
        try:
            for each in calls:
                run = await runs.decide(session, each, **decision)
        except LookupError as error:
            raise click.ClickException(str(error)) from None
    if not calls:
        raise NothingFoundError(f"every call of session {shown(session)} has a decision", run)
    verb = "approved" if decision["approve"] else "rejected"
    left = f"{len(run.undecided)} without a decision"
    await show(run, message=f"{verb} {counted(len(calls), 'call')}; {left}")


def _rows(runs: Sequence[RunInfo]) -> Iterator[list[str]]:
    for run in runs:
        end = [run.status, ago(run.started_at)]
        if not run.pending:
            yield [run.session_id, "", "", shown(run.error or ""), "", *end]
        for call in run.pending:
            given = call.decision
            decision = "approved" if given and given.approve else "rejected" if given else "waiting"
            arguments = "(encrypted)" if call.arguments is None else shown(call.arguments)
            yield [run.session_id, call.call_id, call.tool or "", arguments, decision, *end]
