"""What was measured, as plain data: written to `results.json`, joined with what is there already.

Everything takes hours; a run of some servers, sizes or halves replaces what it measured and leaves
the rest. That is sound because nothing is compared across runs: a ratio is of one server and size.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from . import operations as op
from .agents import TRACKED
from .catalog import AtSize, CatalogResults
from .indexes import IndexResults
from .measure import Timings
from .overhead import Overhead
from .search import SearchResults

Results: TypeAlias = dict[str, Any]
"""By server: its `version`, and what was measured of it, `sizes` by their number."""

_VERSIONS = (
    *("openai-agents", "sqlalchemy", "aiosqlite", "asyncpg", "asyncmy"),
    *("google-adk", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "agno"),
    *("openai-chatkit", "datasette", "uvicorn"),
)


def read(path: Path) -> Results:
    """What was measured before; empty if nothing was."""
    if not path.exists():
        return {}
    servers: Results = json.loads(path.read_text())["servers"]
    return servers


def write(results: Results, path: Path) -> None:
    """Keep what was measured."""
    versions = {name: found for name in _VERSIONS if (found := _version(name))}
    content = {"python": platform.python_version(), "versions": versions, "servers": results}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def join(
    results: Results,
    title: str,
    server_version: str,
    overhead: list[Overhead],
    catalog: CatalogResults,
) -> None:
    """Put what was measured on a server among the results."""
    server = _server(results, title)
    server["version"] = server_version
    for one in overhead:
        server["overhead"].setdefault(one.mode, {})[one.operation] = _timings(one.timings, "ours")
    server["statements"].update(catalog.statements)
    if catalog.same_page is not None:
        server["same_page"] = _timings(catalog.same_page, "large")
    for at_size in catalog.sizes:
        server["sizes"][str(at_size.size)] = _at_size(at_size)
    server["sizes"] = dict(sorted(server["sizes"].items(), key=lambda item: int(item[0])))


def join_agents(results: Results, title: str, calls: dict[str, float]) -> None:
    """Put what agents' calls took among the results."""
    _server(results, title)["agents"] = {name: _rounded(took) for name, took in calls.items()}


def join_tracker(results: Results, title: str, tracker: Timings) -> None:
    """Put what a tracked run took among the results."""
    _server(results, title)["tracker"] = _timings(tracker, TRACKED)


def join_indexes(results: Results, title: str, found: IndexResults) -> None:
    """Put what indexes are for among the results; a smaller run leaves the rest of a larger one."""
    indexes = _server(results, title).setdefault("indexes", {})
    parts: dict[str, dict[Any, Timings]] = {"contests": found.contests, "owners": found.owners}
    parts |= {f"conditions {size}": each for size, each in found.conditions.items()}
    for part, contests in parts.items():
        kept = indexes.setdefault(part, {})
        kept |= {
            str(what): _timings(timings, next(iter(timings.wall)))
            for what, timings in contests.items()
        }
    indexes.setdefault("statements", {}).update(found.statements)


def join_search(results: Results, title: str, found: SearchResults) -> None:
    """Put what was measured of search among the results."""
    search = _server(results, title).setdefault("search", {})
    search.setdefault("contests", {}).update(
        {what: _timings(each, next(iter(each.wall))) for what, each in found.contests.items()}
    )
    search.setdefault("figures", {}).update(found.figures)


def join_doors(
    results: Results, title: str, contests: dict[str, Timings], leaks: dict[str, list[str]]
) -> None:
    """Put what was measured of HTTP, ChatKit and the browser among the results."""
    doors = _server(results, title).setdefault("doors", {})
    for what, timings in contests.items():
        doors[what] = _timings(timings, next(iter(timings.wall)))
    if leaks:
        doors["leaks"] = leaks


def join_tasks(results: Results, title: str, tasks: dict[str, Any]) -> None:
    """Put what tasks in a browser took among the results."""
    if tasks:
        _server(results, title).setdefault("doors", {})["tasks"] = tasks


def _server(results: Results, title: str) -> dict[str, Any]:
    empty = {"overhead": {}, "statements": {}, "same_page": None, "sizes": {}}
    server: dict[str, Any] = results.setdefault(title, empty)
    return server


def _at_size(at_size: AtSize) -> dict[str, Any]:
    return {
        "operations": {
            operation: {
                **_timings(at_size.peer_timings.get(operation, Timings()), op.OURS),
                **_timings(timings, op.OURS),
            }
            for operation, timings in at_size.timings.items()
        },
        "late_over_first": _rounded(at_size.late_over_first),
        "walk": asdict(at_size.walk) if at_size.walk else None,
        "load_seconds": {name: _rounded(took) for name, took in at_size.load_seconds.items()},
        "left_out": at_size.left_out,
        "answers_otherwise": at_size.differing,
    }


def _timings(timings: Timings, first: str) -> dict[str, Any]:
    """Milliseconds of each, and how much longer `first` took than each, in the median round."""
    return {
        name: {
            "ms": _rounded(timings.milliseconds(name)),
            "cpu_ms": _rounded(median(timings.cpu[name]) * 1000),
            "ratio": _rounded(timings.ratio(first, name)),
            "cpu_ratio": _rounded(timings.cpu_ratio(first, name)),
            "rounds": len(seconds),
        }
        for name, seconds in timings.wall.items()
    }


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
