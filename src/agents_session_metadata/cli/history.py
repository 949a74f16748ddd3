"""The commands about the items of sessions."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from agents_session_metadata.text import content_texts, escaped, is_encrypted

from . import options, output
from .app import cli
from .connection import ChosenDatabase, database_options
from .options import Whole, confirm, flag, usage
from .output import NothingFoundError, Pages, Table, counted, show, shown

if TYPE_CHECKING:
    from agents_session_metadata.types import ItemInfo, SearchHit, SearchPage

_item = partial(click.option, type=int, metavar="ITEM")


@cli.command(epilog="Example: agent-sessions history chat-1 --limit 20 --newest-first")
@options.session
@options.pages("items", 50)
@flag("--newest-first", help="Print the newest items first.")
@database_options(by=True)
async def history(database: ChosenDatabase, session: str, pages: Pages, newest_first: bool) -> None:
    """Print the history of a session, oldest items first.

    The number before each item is its id. Pass it to rewind or fork.
    """
    catalog = database.catalog
    read = partial(catalog.list_items, session, newest_first=newest_first)
    if not await pages.write(read, _write_items):
        raise await output.nothing_in(catalog, session, "has no items")


@cli.command(epilog="Example: agent-sessions rewind chat-1 --turns 1 --yes")
@options.session
@click.option("--turns", type=Whole(1), help="Remove this many turns from the end.")
@_item("--before", help="Remove this item and everything after it.")
@_item("--expect-last", help="Fail if this is not the newest item.")
@options.yes
@database_options(by=True)
async def rewind(
    database: ChosenDatabase,
    session: str,
    turns: int | None,
    before: int | None,
    expect_last: int | None,
    yes: bool,
) -> None:
    """Remove the last items of a session's history. Metadata is kept.

    Requires --turns or --before. A turn begins with a user message. Item ids are those that history
    prints. A call is never separated from its output.
    """
    if (turns is None) == (before is None):
        usage("pass either --turns or --before")
    what = f"everything from item {before} on" if turns is None else counted(turns, "turn")
    await confirm(f"Remove {what} of session {shown(session)}?", yes=yes)
    catalog = database.catalog
    try:
        removed = await catalog.rewind_session(
            session, turns=turns, before=before, expect_last=expect_last
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    document = {"session_id": session, "removed": removed}
    if not removed:
        raise await output.nothing_in(catalog, session, "has no turns", document)
    await show(document, message=f"removed {counted(len(removed), 'item')}")


@cli.command(epilog="Example: agent-sessions fork chat-1 chat-2 --before 17")
@options.session
@click.argument("new", required=False, help="The id of the copy. Default: random.")
@_item("--before", help="Copy only the items before this one.")
@options.meta
@database_options(by=True, limits=True)
async def fork(
    database: ChosenDatabase, session: str, new: str | None, before: int | None, meta: Sequence[str]
) -> None:
    """Copy a session with history and metadata, and print the id of the copy.

    The id of the original is stored under forked_from, the item of --before under forked_before.
    """
    metadata = options.parse_pairs(meta, "--meta")
    copy = await database.catalog.fork_session(session, new, metadata=metadata, before=before)
    stored = await copy.get_metadata() if output.wants_json() else None
    await show({"session_id": copy.session_id, "metadata": stored}, escaped(copy.session_id))


@cli.command(epilog="Example: agent-sessions search 'lisbon \"tram 28\" alf*' --meta owner_id=u1")
@click.argument("query", help='Words, "a phrase", a prefix* or -excluded words.')
@options.filters
@options.pages("hits", 20, 100)
@flag("--by-session", help="Print only the newest hit of each session.")
@database_options()
async def search(
    database: ChosenDatabase, query: str, where: Any, pages: Pages, by_session: bool
) -> None:
    """Find messages and titles that contain all words, newest first.

    Requires the text index: agent-sessions index create '$text'.
    """
    catalog, complete = database.catalog, True

    async def fetch(limit: int, cursor: str | None) -> SearchPage:
        nonlocal complete
        page = await catalog.search(query, where, limit=limit, cursor=cursor, by_session=by_session)
        complete = complete and page.complete
        return page

    found = await pages.write(fetch, _write_hits)
    if not complete:
        output.say("messages may be missing; run agent-sessions index refresh '$text'")
    if not found:
        raise NothingFoundError("no message matches" + output.hint(where))


def _write_hits(hits: Sequence[SearchHit]) -> None:
    for hit in hits:
        name = escaped(hit.session_id) + ("" if hit.item_id is None else f"  {hit.item_id}")
        output.write(f"{name}  {hit.created_at:%Y-%m-%d %H:%M:%S}  {hit.role}")
        marked, end = "", 0
        for start, stop in hit.highlights:
            marked += f"{hit.snippet[end:start]}[{hit.snippet[start:stop]}]"
            end = stop
        output.write(f"    {escaped(' '.join((marked + hit.snippet[end:]).split()))}")


def _write_items(items: Sequence[ItemInfo]) -> None:
    for info in items:
        kind, *lines = _lines(info.item)
        output.write(f"{info.item_id}  {info.created_at:%Y-%m-%d %H:%M:%S}  {escaped(kind)}")
        for line in lines:
            output.write(f"    {line}".rstrip())


def _lines(item: Any) -> Iterator[str]:
    """Yields the kind of an item, then its text."""
    if not isinstance(item, dict):
        yield from ("item", shown(item))
    elif is_encrypted(item):
        yield "encrypted"
    elif "role" in item:
        yield str(item["role"])
        for text in content_texts(item.get("content")):
            yield from text.split("\n")
    else:
        yield str(item.get("type") or "item")
        for name, value in item.items():
            if name != "type":
                yield shown(f"{name}: {shown(value)}")


@cli.command(
    epilog="Example: agent-sessions replay --meta run=completed --since 7d "
    "--agent my_app.agents:agent"
)
@click.argument("session", required=False, help="The session id.")
@click.option(
    "--agent",
    required=True,
    help="The agent, or a function of SessionInfo that returns it, as package.module:name.",
)
@click.option("--model", help="Ask this model instead of using the recorded answers.")
@flag("--texts", help="With --model: another text of the assistant is a difference.")
@options.filters
@click.option(
    "--feedback",
    shell_complete=options.completing("positive", "negative"),
    help="Only sessions with this vote: positive or negative.",
)
@click.option("--junit", metavar="FILE", help="Write the results to this file, as JUnit XML.")
@database_options(by=True)
async def replay(
    database: ChosenDatabase,
    session: str | None,
    agent: str,
    where: Any,
    feedback: Any,
    junit: str | None,
    **asked: Any,
) -> None:
    """Run an agent again with the recorded answers and outputs, and print what differs.

    Pass a session, or options that select sessions; --where '{}' selects all. No tool runs, and
    without --model no model is asked. The working directory is on the import path. The exit code is
    1 if there are differences, or if all sessions are skipped.
    """
    from agents_session_metadata.replay import Replay

    agent_of, is_suite = _imported(agent), (where, feedback) != (None, None)
    if is_suite == (session is not None) or (junit and session is not None):
        usage("pass SESSION, or options that select sessions; --junit is for the latter")
    catalog = database.catalog
    if session is not None:
        one = await Replay.of(catalog, session)
        own = await agent_of(await catalog.get_session(session))
        await _show_differences(await one.run(own, **asked))
        return
    found = Replay.each(catalog, where, agent_of, feedback=feedback, **asked)
    results = await _write_results(found)
    if junit is not None:
        _write_junit(junit, agent, results)
    if not results:
        raise NothingFoundError(output.no_match(where))
    counts = Counter(outcome for _, outcome, _ in results)
    each = ", ".join(f"{counts[name]:,} {name}" for name in ("equal", "different", "skipped"))
    message = f"replayed {counted(len(results), 'session')}: {each}"
    await show(message=message, code=0 if counts["equal"] and not counts["different"] else 1)


async def _show_differences(found: Any) -> None:
    header = ("turn", "difference", "recorded", "replayed")
    rows = [
        (str(each.turn), each.problem, shown(each.recorded or ""), shown(each.replayed or ""))
        for each in found.differences
    ]
    if rows:
        await show(found, table=Table(header, rows, folded=True), code=1)
    await show(found, f"no differences in {counted(len(found.recorded), 'turn')}")


async def _write_results(found: Any) -> list[tuple[str, str, str]]:
    """Prints a line per session. Returns its id, the outcome and the problem of each."""
    written, records = [], output.Records(sys.stdout, output.wants_json())
    async with aclosing(found) as results:
        async for result in results:
            problem = result.skipped or "\n".join(map(str, result.differences))
            outcome = "skipped" if result.skipped else "different" if problem else "equal"
            written.append((str(result.session_id), outcome, problem))
            if records.as_list:
                await records.add([result])
                continue
            first, _, rest = problem.partition("\n")
            more = f" (and {len(result.differences) - 1} more)" if rest else ""
            line = f"{outcome:9}  {shown(result.session_id)}  {shown(first)}{more}"
            await output.blocking(output.write, line.rstrip(), name=output.STDOUT)
    await records.close()
    return written


def _write_junit(file: str, agent: str, results: Sequence[tuple[str, str, str]]) -> None:
    """Writes a test per session, without the characters that XML cannot contain."""
    from xml.etree import ElementTree

    outside = "[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    counts = Counter(outcome for _, outcome, _ in results)
    totals = {"tests": len(results), "failures": counts["different"], "errors": 0}
    totals["skipped"] = counts["skipped"]
    texts = {name: str(total) for name, total in totals.items()}
    suite = ElementTree.Element("testsuite", {"name": "agent-sessions replay", **texts})
    for session_id, outcome, problem in results:
        name, text = (re.sub(outside, "", each) for each in (session_id, problem))
        case = ElementTree.SubElement(suite, "testcase", classname=agent, name=name)
        if problem:
            tag = "skipped" if outcome == "skipped" else "failure"
            ElementTree.SubElement(case, tag, message=text.partition("\n")[0]).text = text
    text = ElementTree.tostring(suite, encoding="unicode")
    with output.writing(file) as opened:
        opened.write(f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>{text}</testsuites>\n')


def _imported(path: str) -> Callable[[Any], Awaitable[Any]]:
    from pathlib import Path
    from pkgutil import resolve_name

    from agents import Agent

    sys.path.insert(0, str(Path.cwd()))
    try:
        found = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        usage(f"--agent {path} cannot be imported: {error}")
    if not isinstance(found, Agent) and not callable(found):
        usage(f"--agent {path} must be an Agent or a function, got {type(found).__name__}")

    async def agent_of(info: Any) -> Any:
        agent = found if isinstance(found, Agent) else found(info)
        return await agent if inspect.isawaitable(agent) else agent

    return agent_of
