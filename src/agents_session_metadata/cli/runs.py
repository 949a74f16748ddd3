"""The commands about runs: their list, and the approvals that they wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import click

from agents_session_metadata.text import ago, ascii_json, escaped

from . import options, output
from .app import cli
from .connection import ChosenDatabase, database_options
from .options import confirm, flag, usage
from .output import STDOUT, NothingFoundError, Pages, Table, blocking, counted, show, shown

if TYPE_CHECKING:
    from agents_session_metadata import RunInfo

_call_argument = click.argument("call", required=False, help="The call id; or pass --all.")
_all_option = flag("--all", "every", help="Decide every call without a decision.")
_as_option = click.option("--as", "by_name", help="The name to store with the decision.")


@cli.command(epilog="Example: agent-sessions runs --status waiting --meta owner_id=u1")
@click.option(
    "--status",
    shell_complete=options.completing("running", "waiting", "interrupted", "failed"),
    help="Only running, waiting, interrupted or failed runs.",
)
@click.option(
    "--follow", metavar="SESSION", help="Print the events of the run of this session until it ends."
)
@options.filters
@options.pages("runs", 20)
@database_options()
async def runs(
    database: ChosenDatabase, status: Any, follow: str | None, where: Any, pages: Pages
) -> None:
    """List runs that work, wait for an approval, were interrupted or failed, newest first.

    With --follow, print the messages, calls and outputs of one run, and its answer while it is
    written. With --jsonl, each event is a line.
    """
    from agents_session_metadata import RunStatus

    if follow is not None:
        if status is not None or where is not None or pages.every or pages.cursor is not None:
            usage("--follow is for one run; omit filters, --status, --cursor and --all")
        if output.wants_json():
            usage("--follow prints events as they happen; for JSON, pass --jsonl")
        await _follow(database, follow, as_lines=pages.as_lines)
        return
    statuses = get_args(RunStatus)
    if status not in (None, *statuses):
        usage(f"--status must be one of {', '.join(statuses)}, got {shown(status)}")
    header = ("session", "call", "tool", "arguments", "decision", "status", "started")
    read = partial(database.runs.list, status, where)
    found = await pages.write(read, lambda runs: Table(header, _rows(runs)).write())
    if not found:
        problem = f"no run is {status}" if status else "no runs found"
        await show(message=problem + output.hint(where))


@cli.command(epilog="Example: agent-sessions approve chat-1 call_7f2 --as user_123")
@options.session
@_call_argument
@_all_option
@_as_option
@database_options(by=True)
async def approve(
    database: ChosenDatabase, session: str, call: str | None, every: bool, by_name: str | None
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
    database: ChosenDatabase,
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
async def discard(database: ChosenDatabase, session: str, yes: bool) -> None:
    """Give up a run that waits, was interrupted or has failed.

    Its messages are kept. Calls without an output are removed.
    """
    await confirm(f"Discard the run of session {shown(session)}?", yes=yes)
    await _show_ended(database, session, "discarded", await database.runs.discard(session))


@cli.command(epilog="Example: agent-sessions stop chat-1")
@options.session
@database_options(by=True)
async def stop(database: ChosenDatabase, session: str) -> None:
    """End a run that works, waits or was interrupted, in any process.

    The text that a run has streamed so far is kept. Calls without an output are removed.
    """
    await _show_ended(database, session, "stopped", await database.runs.cancel(session))


async def _show_ended(database: ChosenDatabase, session: str, verb: str, is_ended: bool) -> None:
    document = {"session_id": session, verb: is_ended}
    if not is_ended:
        raise await output.nothing_in(database.catalog, session, "has no run", document)
    await show(document, message=f"{verb} the run")


async def _follow(database: ChosenDatabase, session: str, *, as_lines: bool) -> None:
    transcript, found = Transcript(), 0
    try:
        async for event in database.runs.follow(session):
            found += 1
            text = ascii_json(event) + "\n" if as_lines else transcript.text_of(event)
            await blocking(partial(click.echo, text, nl=False), name=STDOUT)
    except ValueError as error:  # It is encrypted.
        raise click.ClickException(str(error)) from None
    if not found:
        raise await output.nothing_in(database.catalog, session, "has no run")


class Transcript:
    """What the events of a run say, as lines. The line of an answer grows while it is written."""

    def __init__(self) -> None:
        self._is_open = False

    def text_of(self, event: dict[str, Any]) -> str:
        kind = event["type"]
        if kind == "snapshot":
            items = [self._line(_item(item)) for item in event["items"]]
            return "".join([*items, *map(self.text_of, event["events"])])
        if kind == "response.output_text.delta":
            begin = "" if self._is_open else "assistant: "
            self._is_open = True
            return begin + escaped(event["delta"], "\n\t")
        if kind == "response.created":
            return self._line("(the answer begins again)") if self._is_open else ""
        if kind == "item":
            # The text of an answer was shown while it was written.
            is_shown = self._is_open and event["item"].get("role") == "assistant"
            return self._line("" if is_shown else _item(event["item"]))
        if kind == "status":
            calls = [_call(each) for each in event.get("pending", ())]
            error = event.get("error") or {}
            reason = f": {error['type']}: {error['message']}" if error else ""
            return "".join(map(self._line, [*calls, event["status"] + reason]))
        return ""

    def _line(self, text: str) -> str:
        """Returns a line of its own, after the end of an open one."""
        end, self._is_open = "\n" if self._is_open else "", False
        return end + (escaped(text, "\n\t") + "\n" if text else "")


def _item(item: dict[str, Any]) -> str:
    if "role" in item:
        content = item.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text") or f"({part.get('type')})") for part in content)
        return f"{item['role']}: {content}"
    name = item.get("name") or item.get("type", "item")
    if "output" in item:
        return f"output: {shown(item['output'])}"
    return f"{name}: {shown(item.get('arguments', item))}"


def _call(call: dict[str, Any]) -> str:
    arguments = "(encrypted)" if call["arguments"] is None else shown(call["arguments"])
    return f"waits for {call['tool']} {call['call_id']}: {arguments}"


async def _decide(
    database: ChosenDatabase, session: str, call: str | None, every: bool, **decision: Any
) -> None:
    if (call is None) is not every:
        usage("pass either the id of a call or --all; `agent-sessions runs` lists the calls")
    run = await database.runs.get(session)
    if run is None:
        raise await output.nothing_in(database.catalog, session, "has no run")
    calls = [each.call_id for each in run.undecided] if call is None else [call]
    try:
        for each in calls:
            run = await database.runs.decide(session, each, **decision)
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
