"""`python -m benchmarks.tables DIRECTORY`: the results as tables in Markdown, beside the chart.

Each time the documentation is built, from `results.json`: figures in it cannot be older than those.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import agents, doors, goals, indexes
from . import operations as op
from .overhead import MODES, OPERATIONS

_HERE = Path(__file__).parent


def main() -> None:
    """Write `performance.md`, and put the chart next to it."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    content = json.loads((_HERE / "results.json").read_text(encoding="utf-8"))
    text = "\n\n".join(page(content)) + "\n"
    (directory / "performance.md").write_text(text, encoding="utf-8")
    for chart in _HERE.glob("*.svg"):
        shutil.copy(chart, directory)


def page(content: dict[str, Any]) -> Iterator[str]:
    """All parts, in order."""
    servers: dict[str, Any] = content.get("servers", {})
    if not servers:
        yield "Nothing has been measured with this version."
        return
    yield "## Measured with"
    yield _measured_with(content, servers)
    if any("indexes" in server for server in servers.values()):
        yield from _indexes(servers)
    yield "## Sessions beside the SDK's own"
    yield (
        "Milliseconds per call: this package / `SQLAlchemySession`, and in brackets the ratio of "
        "the two in the median round."
    )
    yield _overhead(servers)
    yield "## Operations on metadata beside a plain table"
    yield "Milliseconds per call: this package / plain table (ratio in the median round)."
    for size in sorted({int(each) for server in servers.values() for each in server["sizes"]}):
        yield f"### {size:,} sessions"
        yield _operations(servers, str(size))
    if any("agents" in server for server in servers.values()):
        yield "## What agents do"
        yield (
            "Milliseconds per call, in a database of 1,000 sessions; a run with eight tool calls, "
            "tracked / untracked (ratio)."
        )
        yield _agents(servers)
    peers = list(_peers(servers))
    if peers:
        yield "## Other libraries"
        yield "The newest 20 sessions of one owner, with their metadata, in milliseconds."
        yield from peers
    if any("search" in server for server in servers.values()):
        yield "## Search"
        yield "Ratios in the median round; in brackets the goal."
        yield _search(servers)
    if any("doors" in server for server in servers.values()):
        yield from _doors(servers)
    yield "## Statements per call"
    yield _statements(servers)
    yield "## Walks through everything"
    yield "`iter_sessions`; memory is the increase after the first 1,000 sessions."
    yield _walks(servers)


def _measured_with(content: dict[str, Any], servers: dict[str, Any]) -> str:
    versions = {"Python": content["python"], **content["versions"]}
    found = [server.get("version", "") for server in servers.values()]
    named = {
        title: version.removeprefix(title).strip()
        for title, version in zip(servers, found, strict=True)
    }
    return _table(["what", "version"], ([name, text] for name, text in (named | versions).items()))


def _overhead(servers: dict[str, Any]) -> str:
    def cell(server: dict[str, Any], mode: str, operation: str) -> str:
        return _compared(server["overhead"].get(mode, {}).get(operation, {}), "ours", "sdk")

    rows = (
        [f"`{operation}`", mode, *(cell(server, mode, operation) for server in servers.values())]
        for mode in MODES
        for operation in OPERATIONS
    )
    return _table(["call", "session", *servers], rows)


def _operations(servers: dict[str, Any], size: str) -> str:
    def cell(server: dict[str, Any], operation: str) -> str:
        measured = server["sizes"].get(size, {}).get("operations", {})
        return _compared(measured.get(operation, {}), op.OURS, op.PLAIN)

    shown = [title for title in servers if size in servers[title]["sizes"]]
    rows = ([each, *(cell(servers[title], each) for title in shown)] for each in op.OPERATIONS)
    return _table(["operation", *shown], rows)


def _indexes(servers: dict[str, Any]) -> Iterator[str]:
    yield "## Indexes"
    yield "Ratios in the median round; in brackets the goal."
    limits = [goal for goal in goals.goals() if goal.what.startswith(goals.OF_INDEXES)]
    yield _table(
        ["what", *servers],
        (
            [
                goal.what.removeprefix(goals.OF_INDEXES),
                *(str(goal.cell(title, server)) for title, server in servers.items()),
            ]
            for goal in limits
        ),
    )
    yield "### Newest 20 of one owner among 100,000 sessions"
    if any(server.get("indexes", {}).get("owners") for server in servers.values()):
        yield "![Latency of the page, by the sessions of the owner](generated/indexes.svg)"
    yield "Milliseconds a call, by the number of sessions of the owner."
    for title, server in servers.items():
        owners = server.get("indexes", {}).get("owners", {})
        parties = dict.fromkeys(party for timings in owners.values() for party in timings)
        rows = (
            [party, *(_number(timings.get(party, {}).get("ms")) for timings in owners.values())]
            for party in parties
        )
        if parties:
            yield _table([title, *(f"{int(count):,}" for count in owners)], rows)
    yield "### Further conditions beside an index"
    yield "Milliseconds a call: with index / without index (ratio in the median round)."
    of_sizes = {
        f"{title}, {int(part.split()[1]):,}": contests
        for title, server in servers.items()
        for part, contests in server.get("indexes", {}).items()
        if part.startswith("conditions")
    }
    yield _table(
        ["filter", *of_sizes],
        (
            [
                what,
                *(
                    _compared(contests.get(what, {}), indexes.WITH, indexes.WITHOUT)
                    for contests in of_sizes.values()
                ),
            ]
            for what in indexes.CONDITIONS
        ),
    )


def _agents(servers: dict[str, Any]) -> str:
    calls = dict.fromkeys(call for server in servers.values() for call in server.get("agents", ()))
    rows = [
        [call, *(_number(server.get("agents", {}).get(call)) for server in servers.values())]
        for call in calls
    ]
    runs = [
        _compared(server.get("tracker", {}), agents.TRACKED, agents.UNTRACKED)
        for server in servers.values()
    ]
    return _table(["call", *servers], [*rows, ["a run", *runs]])


def _peers(servers: dict[str, Any]) -> Iterator[str]:
    for title, server in servers.items():
        at = {
            size: at_size["operations"].get(op.NEWEST, {})
            for size, at_size in server["sizes"].items()
        }
        parties = dict.fromkeys(party for timings in at.values() for party in timings)
        if parties.keys() <= {op.OURS, op.PLAIN}:
            continue
        sizes = [f"{int(size):,} sessions" for size in at]
        rows = (
            [party, *(_number(timings.get(party, {}).get("ms")) for timings in at.values())]
            for party in parties
        )
        yield f"### {title}"
        yield _table(["", *sizes], rows)


def _search(servers: dict[str, Any]) -> str:
    rows = (
        [
            goal.what.removeprefix(goals.OF_SEARCH),
            *(str(goal.cell(title, server)) for title, server in servers.items()),
        ]
        for goal in goals.goals()
        if goal.what.startswith(goals.OF_SEARCH)
        and any(goal.measured(server) is not None for server in servers.values())
    )
    return _table(["what", *servers], rows)


def _doors(servers: dict[str, Any]) -> Iterator[str]:
    yield "## HTTP, ChatKit and the browser"
    yield "Ratios in the median round; in brackets the goal."
    rows = (
        [
            goal.what.removeprefix(goals.OF_DOORS),
            *(str(goal.cell(title, server)) for title, server in servers.items()),
        ]
        for goal in goals.goals()
        if goal.what.startswith(goals.OF_DOORS)
    )
    yield _table(["what", *servers], rows)
    for title, server in servers.items():
        measured = server.get("doors", {})
        if doors.COST in measured:
            yield f"### Where the time of a page over HTTP goes, {title}"
            layers = {name: each["ms"] for name, each in measured[doors.COST].items()}
            yield _table(["what", "milliseconds"], _layers(layers))
        if doors.THREADS in measured:
            yield "### ChatKit's `threads.list` among 10,000 threads of one user"
            timings = measured[doors.THREADS]
            yield _table(
                ["store", "milliseconds", "this package's time / its time"],
                (
                    [store, _number(each["ms"]), _number(each["ratio"])]
                    for store, each in timings.items()
                ),
            )
        if "leaks" in measured:
            yield "### ChatKit methods that let another user read or change something"
            yield _table(
                ["store", "of 14", "methods"],
                (
                    [store, str(len(found)), ", ".join(f"`{each}`" for each in found)]
                    for store, found in measured["leaks"].items()
                ),
            )
        if "tasks" in measured:
            yield from _tasks(measured["tasks"])


def _layers(ms: dict[str, float]) -> Iterator[list[str]]:
    yield ["whole page over a kept connection", _number(ms[doors.HTTP])]
    yield ["catalog", _number(ms[doors.CATALOG])]
    yield ["scope, query and JSON", _number(ms[doors.APPLICATION] - ms[doors.CATALOG])]
    yield ["uvicorn, connection and client, sending the same bytes", _number(ms[doors.BYTES])]


def _tasks(tasks: dict[str, Any]) -> Iterator[str]:
    tools = dict.fromkeys(tool for found in tasks.values() for tool in found)

    def cell(found: dict[str, Any]) -> str:
        if not found:
            return "not possible"
        characters = f" + {found['characters']} typed" if found["characters"] else ""
        return f"{found['clicks']}{characters}, {_number(found['ms'])} ms"

    yield "### Ten tasks in a browser"
    yield (
        "Clicks, characters typed, and milliseconds from the first click to the result, each task "
        "from the first page of the tool, measured by driving Chromium. google-adk's page begins "
        "with the sessions of another owner. It neither searches nor filters sessions, and saves "
        "changed state, such as tags, only with the next message to the agent. datasette writes "
        "nothing."
    )
    rows = ([task, *(cell(found.get(tool, {})) for tool in tools)] for task, found in tasks.items())
    yield _table(["task", *tools], rows)


def _statements(servers: dict[str, Any]) -> str:
    calls = dict.fromkeys(call for server in servers.values() for call in server["statements"])
    shown = [title for title in servers if servers[title]["statements"]]
    rows = (
        [call, *(str(servers[title]["statements"].get(call, "")) for title in shown)]
        for call in calls
    )
    return _table(["call", *shown], rows)


def _walks(servers: dict[str, Any]) -> str:
    rows = (
        [
            title,
            f"{walk['sessions']:,}",
            f"{walk['seconds']:.1f} s",
            f"{walk['growth']:.1f} MB",
        ]
        for title, server in servers.items()
        for at_size in server["sizes"].values()
        if (walk := at_size["walk"])
    )
    return _table(["database", "sessions", "time", "memory"], rows)


def _compared(timings: dict[str, Any], ours: str, other: str) -> str:
    if ours not in timings or other not in timings:
        return ""
    ratio = _number(timings[other]["ratio"])
    return f"{_number(timings[ours]['ms'])} / {_number(timings[other]['ms'])} ({ratio})"


def _number(number: float | None) -> str:
    if number is None:
        return ""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
