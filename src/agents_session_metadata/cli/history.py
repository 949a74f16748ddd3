"""The commands about the items of sessions."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any
from xml.etree import ElementTree

import click

from agents_session_metadata.text import content_texts, escaped
from agents_session_metadata.types import ItemInfo, SearchHit, SearchPage

from . import options
from .app import WRITES, Target, command
from .options import SESSION, YES, Whole, argument, confirm, flag, option, parse_pairs, usage
from .output import (
    STDOUT,
    Answer,
    Pages,
    Records,
    Table,
    blocking,
    counted,
    hint,
    no_match,
    nothing,
    say,
    shown,
    write,
)
from .transfer import writing


@command("history chat-1 --limit 20 --newest-first")
async def history(
    target: Target,
    session: str = SESSION,
    pages: Pages = options.paging("items", 50),
    newest_first: bool = flag("Print the newest items first."),
) -> Answer:
    """Print the history of a session, oldest items first.

    The number before each item is its id. Pass it to rewind or fork.
    """
    read = partial(target.catalog.list_items, session, newest_first=newest_first)
    found = await pages.write(read, _write_items, as_json=target.as_json)
    return Answer() if found else await target.nothing(session, "has no items")


@command("rewind chat-1 --turns 1 --yes")
async def rewind(
    target: Target,
    session: str = SESSION,
    turns: int | None = option("Remove this many turns from the end.", type=Whole(1)),
    before: int | None = options.item("Remove this item and everything after it."),
    expect_last: int | None = options.item("Fail if this is not the newest item."),
    yes: bool = YES,
) -> Answer:
    """Remove the last items of a session's history. Metadata is kept.

    Requires --turns or --before. A turn begins with a user message. Item ids are those that history
    prints. A call is never separated from its output.
    """
    if (turns is None) == (before is None):
        usage("pass either --turns or --before")
    what = f"everything from item {before} on" if turns is None else counted(turns, "turn")
    await confirm(f"Remove {what} of session {shown(session)}?", yes=yes)
    try:
        removed = await target.catalog.rewind_session(
            session, turns=turns, before=before, expect_last=expect_last
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    document = {"session_id": session, "removed": removed}
    if not removed:
        return await target.nothing(session, "has no turns", document)
    return Answer(document=document, message=f"removed {counted(len(removed), 'item')}")


@command("fork chat-1 chat-2 --before 17", WRITES)
async def fork(
    target: Target,
    session: str = SESSION,
    new: str | None = argument("The id of the copy. Default: random.", "[NEW]", required=False),
    before: int | None = options.item("Copy only the items before this one."),
    meta: Sequence[str] = options.META,
) -> Answer:
    """Copy a session with history and metadata, and print the id of the copy.

    The id of the original is stored under forked_from, the item of --before under forked_before.
    """
    metadata = parse_pairs(meta, "--meta")
    copy = await target.catalog.fork_session(session, new, metadata=metadata, before=before)
    stored = await copy.get_metadata() if target.as_json else None
    document = {"session_id": copy.session_id, "metadata": stored}
    return Answer(document=document, text=escaped(copy.session_id))


@command("search 'lisbon \"tram 28\" alf*' --meta owner_id=u1")
async def search(
    target: Target,
    query: str = argument('Words, "a phrase", a prefix* or -excluded words.'),
    condition: Any = options.filters(),
    pages: Pages = options.paging("hits", 20, 100),
    by_session: bool = flag("Print only the newest hit of each session."),
) -> Answer:
    """Find messages and titles that contain all words, newest first.

    Requires the text index: agent-sessions index create '$text'.
    """
    complete = True

    async def fetch(limit: int, cursor: str | None) -> SearchPage:
        nonlocal complete
        page = await target.catalog.search(
            query, condition, limit=limit, cursor=cursor, by_session=by_session
        )
        complete = complete and page.complete
        return page

    found = await pages.write(fetch, _write_hits, as_json=target.as_json)
    if not complete:
        say("messages may be missing; run agent-sessions index refresh '$text'")
    return Answer() if found else nothing("no message matches" + hint(condition))


def _write_hits(hits: Sequence[SearchHit]) -> None:
    for hit in hits:
        item = "" if hit.item_id is None else f"  {hit.item_id}"
        write(f"{escaped(hit.session_id)}{item}  {hit.created_at:%Y-%m-%d %H:%M:%S}  {hit.role}")
        marked, end = "", 0
        for start, stop in hit.highlights:
            marked += f"{hit.snippet[end:start]}[{hit.snippet[start:stop]}]"
            end = stop
        write(f"    {escaped(' '.join((marked + hit.snippet[end:]).split()))}")


def _write_items(items: Sequence[ItemInfo]) -> None:
    for info in items:
        kind, *lines = _lines(info.item)
        write(f"{info.item_id}  {info.created_at:%Y-%m-%d %H:%M:%S}  {escaped(kind)}")
        for line in lines:
            write(f"    {line}".rstrip())


def _lines(item: Any) -> Iterator[str]:
    """Yields the kind of an item, then its text."""
    if not isinstance(item, dict):
        yield from ("item", shown(item))
    elif item.get("__enc__") == 1:
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


@command("replay --meta run=completed --since 7d --agent my_app.agents:agent")
async def replay(
    target: Target,
    session: str | None = argument("The session id.", "[SESSION]", required=False),
    agent: str = option(
        "The agent, or a function of SessionInfo that returns it, as package.module:name.",
        required=True,
    ),
    model: str | None = option("Ask this model instead of using the recorded answers."),
    texts: bool = flag("With --model: another text of the assistant is a difference."),
    condition: Any = options.filters(),
    feedback: Any = option("Only sessions with this vote: positive or negative."),
    since: Any = option(
        "Only sessions active since: 7d, 12h, yesterday, a time.",
        type=options.moment,
        metavar="TIME",
    ),
    junit: str | None = option("Write the results to this file, as JUnit XML.", metavar="FILE"),
) -> Answer:
    """Run an agent again with the recorded answers and outputs, and print what differs.

    Pass a session, or options that select sessions; --where '{}' selects all. No tool runs, and
    without --model no model is asked. The working directory is on the import path. The exit code is
    1 if there are differences, or if all sessions are skipped.
    """
    from agents_session_metadata.replay import Replay

    agent_of, is_suite = _imported(agent), (condition, feedback, since) != (None, None, None)
    if is_suite == (session is not None) or (junit and session is not None):
        usage("pass SESSION, or options that select sessions; --junit is for the latter")
    if session is not None:
        one = await Replay.of(target.catalog, session)
        own = await agent_of(await target.catalog.get_session(session))
        return _differences(await one.run(own, model=model, texts=texts))
    asked: Any = {"feedback": feedback, "updated_since": since, "model": model, "texts": texts}
    found = Replay.each(target.catalog, condition, agent_of, **asked)
    counts, suite = Counter[str](), ElementTree.Element("testsuite", name="agent-sessions replay")
    records = Records(sys.stdout, target.as_json)
    async with aclosing(found) as results:
        async for result in results:
            problem = result.skipped or "\n".join(map(str, result.differences))
            outcome = "skipped" if result.skipped else "different" if problem else "equal"
            counts[outcome] += 1
            _add_case(suite, agent, str(result.session_id), outcome, problem)
            if target.as_json:
                await records.add([result])
                continue
            first, _, rest = problem.partition("\n")
            more = f" (and {len(result.differences) - 1} more)" if rest else ""
            line = f"{outcome:9}  {shown(result.session_id)}  {shown(first)}{more}"
            await blocking(write, line.rstrip(), name=STDOUT)
    if target.as_json:
        await records.close()
    if junit is not None:
        numbers = counts.total(), counts["different"], 0, counts["skipped"]
        names = "tests", "failures", "errors", "skipped"
        suite.attrib |= dict(zip(names, map(str, numbers), strict=True))
        text = ElementTree.tostring(suite, encoding="unicode")
        with writing(junit) as file:
            file.write(f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>{text}</testsuites>\n')
    if not counts:
        return nothing(no_match(condition))
    each = ", ".join(f"{counts[name]:,} {name}" for name in ("equal", "different", "skipped"))
    message = f"replayed {counted(counts.total(), 'session')}: {each}"
    return Answer(message=message, code=0 if counts["equal"] and not counts["different"] else 1)


def _differences(found: Any) -> Answer:
    rows = [
        (str(each.turn), each.problem, shown(each.recorded or ""), shown(each.replayed or ""))
        for each in found.differences
    ]
    header = ("turn", "difference", "recorded", "replayed")
    count = counted(len(found.recorded), "turn")
    return Answer(
        document=found,
        table=Table(header, rows, folded=True) if rows else None,
        text=None if rows else f"no differences in {count}",
        code=1 if rows else 0,
    )


def _add_case(suite: Any, agent: str, session_id: str, outcome: str, problem: str) -> None:
    """Adds a test to a JUnit suite, without the characters that XML cannot contain."""
    outside = "[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    name, text = (re.sub(outside, "", each) for each in (session_id, problem))
    case = ElementTree.SubElement(suite, "testcase", classname=agent, name=name)
    if problem:
        tag = "skipped" if outcome == "skipped" else "failure"
        ElementTree.SubElement(case, tag, message=text.partition("\n")[0]).text = text


def _imported(path: str) -> Callable[[Any], Awaitable[Any]]:
    import sys
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
