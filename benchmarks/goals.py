"""What is to be reached, as ratios within one interleaved run, and whether it was."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import agents, doors, indexes, search
from . import operations as op
from .databases import TITLES
from .overhead import CREATING, KEPT, OPERATIONS, PER_CALL
from .results import Results

_SIZE = 100_000
_NAMESPACE_PER_OWNER = "LangGraph store, namespace per owner"

OF_INDEXES = "indexed: "
"""How the names of the goals of indexes begin."""
OF_SEARCH = "search: "
"""How the names of the goals of search begin."""
OF_DOORS = "doors: "
"""How the names of the goals of HTTP, ChatKit and the browser begin."""

Limits = tuple[float, float, float]
"""On SQLite, PostgreSQL and MariaDB."""


class Cell(NamedTuple):
    """One goal on one database."""

    measured: float | None
    limit: float
    applies: bool

    def __str__(self) -> str:
        if self.measured is None:
            return "not measured"
        if self.limit == math.inf:
            return _short(self.measured)
        verdict = "met" if self.measured <= self.limit else "missed"
        if not self.applies:
            verdict = "at another N"
        return f"{_short(self.measured)} (≤ {_short(self.limit)}) {verdict}"


@dataclass(frozen=True)
class Goal:
    """Something to reach.

    Attributes:
        what: What is compared with what.
        limits: The greatest ratio.
        measured: Finds the ratio in a server's results; None when it was not measured.
        size: The number of sessions at which it was measured; None when that does not matter.
    """

    what: str
    limits: Limits
    measured: Callable[[dict[str, Any]], float | None]
    size: int | None = None

    def cell(self, title: str, server: dict[str, Any]) -> Cell:
        """Judge one database."""
        limit = self.limits[list(TITLES.values()).index(title)]
        return Cell(self.measured(server), limit, applies=self.size in (None, _SIZE))


def goals(size: int = _SIZE) -> Iterator[Goal]:
    """All goals; those that depend on the number of sessions, with what was measured at `size`."""
    for mode, limit in ((KEPT, 1.03), (PER_CALL, 0.7), (CREATING, 0.7)):
        for operation in OPERATIONS:
            yield Goal(
                f"{operation}, session {mode} / plain SDK",
                (limit, limit, limit),
                _found("overhead", mode, operation, "sdk", "ratio"),
            )

    def against_plain(what: str, operation: str, limits: Limits) -> Goal:
        found = _found("sizes", str(size), "operations", operation, op.PLAIN, "ratio")
        any_size = operation in (op.GET, op.SET)
        return Goal(f"{what} / plain EAV", limits, found, None if any_size else size)

    yield against_plain("get_metadata", op.GET, (1.1, 1.0, 1.1))
    yield against_plain("set_metadata, 5 scalar keys", op.SET, (1.2, 1.2, 1.2))
    yield against_plain("count by owner", op.COUNT, (1.1, 1.1, 1.2))
    yield against_plain("find by owner, newest first", op.FIND, (0.9, 1.1, 1.1))
    yield against_plain("owner and status", op.STATUS, (0.5, 0.5, 1.2))
    yield Goal(
        "owner and status, 20th execution / first",
        (1.5, 1.5, 1.5),
        _found("sizes", str(size), "late_over_first"),
        size,
    )
    yield against_plain("tag, newest first", op.TAGGED, (1 / 20, 1 / 20, 1 / 20))
    yield against_plain("tag, count", op.COUNT_TAGGED, (1 / 20, 1 / 20, 1 / 20))
    yield against_plain("newest 20 with metadata", op.NEWEST, (0.7, 0.8, 1.0))
    yield Goal(
        "newest 20 with metadata / fastest peer",
        (1 / 10, 1 / 10, 1 / 10),
        lambda server: _against_peers(server, size),
        size,
    )
    yield Goal(
        "the same page, N = 1,000,000 / N = 10,000",
        (1.5, 1.5, 1.5),
        _found("same_page", "small", "ratio"),
    )
    for calls, most in (
        (("get", "find", "count"), 1),
        (("page",), 2),
        (("set",), 3),
        (("set with a list",), 5),
    ):
        for call in calls:
            yield Goal(f"statements: {call}", (most, most, most), _found("statements", call))
    for call, milliseconds in ((agents.CHECK, 10), (agents.LIST, 10), (agents.CLEAN_UP, 50)):
        most = (milliseconds, math.inf, math.inf)
        yield Goal(f"{call}, in ms", most, _found("agents", call))
    yield Goal(
        "a run with 8 tool calls, tracked / untracked",
        (1.05, 1.05, 1.05),
        _found("tracker", agents.UNTRACKED, "ratio"),
    )
    yield Goal("iter_sessions: megabytes more after the first 1,000", (16, 16, 16), _largest_growth)
    yield from _of_indexes()
    yield from _of_search()
    yield from _of_doors()


def _of_indexes() -> Iterator[Goal]:
    """Those of indexes: each is measured at sizes of its own."""
    only = math.inf

    def contest(what: str, name: str, other: str, *limits: float) -> Goal:
        of_name = _found("indexes", "contests", name, other, "ratio")
        return Goal(f"{OF_INDEXES}{what}", (limits[0], limits[1], limits[2]), of_name)

    for size in (indexes.MEDIUM, indexes.LARGE):
        for what, name, limit in (
            (f"page, owner of 10,000 of {size:,} / of 100 of 10,000", indexes.GROWTH, 1.3),
            (f"page, owner of 10,000 of {size:,} / get_metadata", indexes.ONE, 3),
            (f"page without a filter, {size:,} / 10,000", indexes.NO_FILTER, 1.3),
            (f"last_session of {size:,}, agent of 10,000 / of 100", indexes.LAST, 1.3),
            (f"find the 500 oldest, {size:,} / 10,000", indexes.RETENTION, 1.5),
        ):
            on_mysql = limit if size == indexes.MEDIUM else only
            yield contest(what, indexes.at_size(name, size), "small", limit, limit, on_mysql)
    yield Goal(
        f"{OF_INDEXES}page of an owner of 10,000 / LangGraph, namespace per owner, 100,000",
        (0.5, 0.5, only),
        _found("indexes", "owners", "10000", _NAMESPACE_PER_OWNER, "ratio"),
    )
    yield contest(
        "tag, newest 20 / plain EAV, 100,000", indexes.TAG, op.PLAIN, 1 / 50, 1 / 50, 1 / 50
    )
    yield contest("add_items, five entries / plain SDK", indexes.ADD, indexes.SDK, 1, 1, 1)
    yield contest(
        "add_items, five entries / without", indexes.ADD, indexes.WITHOUT, 1.15, 1.15, 1.15
    )
    yield Goal(
        f"{OF_INDEXES}further conditions, worst share of what may be added",
        (1, 1, 1),
        _worst_condition,
    )
    for call, most in (("page", 2), ("page with preview", 3), ("page, further conditions", 4)):
        found = _found("indexes", "statements", call)
        yield Goal(f"{OF_INDEXES}statements: {call}", (most, most, most), found)


def allowance(timings: dict[str, Any]) -> tuple[float, float]:
    """What further conditions may take with an index, in milliseconds, and the share they took.

    A question that takes 10 ms or more without index may take half as long again with it, a shorter
    one 5 ms longer.
    """
    without = timings[indexes.WITHOUT]["ms"]
    if without >= 10:
        return 1.5 * without, timings[indexes.WITHOUT]["ratio"] / 1.5
    return without + 5, timings[indexes.WITH]["ms"] / (without + 5)


def _worst_condition(server: dict[str, Any]) -> float | None:
    parts = server.get("indexes", {}).items()
    shares = [
        allowance(timings)[1]
        for part, contests in parts
        if part.startswith("conditions")
        for timings in contests.values()
    ]
    return max(shares, default=None)


def _of_search() -> Iterator[Goal]:
    """Those of search and previews: each is measured with a number of messages of its own."""
    no_goal = math.inf

    def contest(what: str, name: str, other: str, *limits: float) -> Goal:
        found = _found("search", "contests", name, other, "ratio")
        return Goal(f"{OF_SEARCH}{what}", (limits[0], limits[1], limits[2]), found)

    small, medium, large = search.SMALL, search.MEDIUM, search.LARGE
    for size, limit in ((medium, no_goal), (large, 1 / 20)):
        name = search.at_size("LIKE", size)
        what = f"common word, newest 20 of {size:,} messages / `LIKE`"
        yield contest(what, name, search.LIKE, limit, limit, no_goal)
    for size in (medium, large):
        for word, what in ((search.COMMON, "common word"), (search.NEEDLE, "word with 100 hits")):
            name = search.at_size(word, size)
            yield contest(f"{what}, {size:,} / {small:,} messages", name, "small", 2, 2, 2)
    for word, what in ((search.COMMON, "common word"), (search.NEEDLE, "rare word")):
        name = f"{search.ADK}, {word}"
        yield contest(f"{what}, owner of 1,000 sessions / google-adk", name, search.ADK, 1, 1, 1)
    for size in (small, medium, large):
        what = f"user with 10 of {size:,} messages, common / unused word"
        yield contest(what, search.at_size("tiny", size), "unused", 1.5, 1.5, 1.5)
    for words, limit in ((10, 1.3), (60, no_goal)):
        what = f"add_items, {words} words, with text index / plain SDK"
        yield contest(what, f"add {words} words", search.SDK, limit, limit, limit)
    for size in (small, medium, large):
        what = f"list_sessions of 20 with previews / without, {size:,} messages"
        yield contest(what, search.at_size("preview", size), "without", 1.5, 1.5, 1.5)
    for size in (small, medium, large):
        what = f"{OF_SEARCH}bytes of the index / of text, {size:,} messages"
        yield Goal(what, (no_goal, no_goal, no_goal), functools.partial(_index_bytes, size=size))
    for who in ("us", "agno"):
        what = f"a fact of 400 sessions ago, found by {who}"
        found = _found("search", "figures", what)
        yield Goal(f"{OF_SEARCH}{what}", (no_goal, no_goal, no_goal), found)


def _index_bytes(server: dict[str, Any], size: int) -> float | None:
    figures = server.get("search", {}).get("figures", {})
    names = [search.at_size(what, size) for what in ("index bytes", "text bytes")]
    if any(name not in figures for name in names):
        return None
    return float(figures[names[0]] / figures[names[1]])


def _of_doors() -> Iterator[Goal]:
    """Those of HTTP, ChatKit and the browser: each is measured at a size of its own."""

    def contest(what: str, name: str, other: str, limit: float) -> Goal:
        found = _found("doors", name, other, "ratio")
        return Goal(f"{OF_DOORS}{what}", (limit, limit, limit), found)

    page = "HTTP, newest 20 of one owner, 100,000"
    yield contest(f"{page} / google-adk", doors.PAGE, doors.ADK, 1 / 10)
    yield contest(f"{page} / agno", doors.PAGE, doors.AGNO, 1 / 10)
    yield Goal(
        f"{OF_DOORS}HTTP's own cost of that page, in ms", (math.inf, math.inf, math.inf), _own_cost
    )
    threads = "ChatKit threads.list, 10,000"
    yield contest(f"{threads} / memory", doors.THREADS, doors.MEMORY, 1 / 5)
    yield contest(f"{threads} / SQL", doors.THREADS, doors.SQL, 1 / 5)
    yield contest(f"{threads} / SQL with an index", doors.THREADS, doors.SQL_INDEXED, math.inf)
    # What no store can go below: the same request if the store has its page ready.
    for name in (doors.MEMORY, doors.SQL):
        yield Goal(
            f"{OF_DOORS}{doors.READY} / {name}", (math.inf, math.inf, math.inf), _floor(name)
        )
    yield contest(
        "the same without ChatKit's server / memory", doors.LOAD_THREADS, doors.MEMORY, math.inf
    )
    yield contest(
        "the same without ChatKit's server / SQL", doors.LOAD_THREADS, doors.SQL, math.inf
    )
    yield Goal(f"{OF_DOORS}ChatKit: methods that leak, of 14", (0, 0, 0), _leaks)
    for size in doors.LARGE:
        name = doors.first_page(size)
        yield contest(f"browser, first page, {size:,} / 1,000", name, "small", 1.3)
    for unit, name in (("clicks", "clicks"), ("ms", "time")):
        what = f"{OF_DOORS}browser, {name} / best other tool's, worst of ten tasks"
        yield Goal(what, (1, 1, 1), functools.partial(_worst_task, unit=unit))


def _worst_task(server: dict[str, Any], unit: str) -> float | None:
    tasks = server.get("doors", {}).get("tasks", {})
    ratios = [
        found[doors.OURS][unit] / other[unit]
        for found in tasks.values()
        for tool, other in found.items()
        if tool != doors.OURS
    ]
    return max(ratios, default=None)


def _own_cost(server: dict[str, Any]) -> float | None:
    layers = server.get("doors", {}).get(doors.COST)
    if layers is None:
        return None
    return float(layers[doors.HTTP]["ms"] - layers[doors.CATALOG]["ms"])


def _floor(name: str) -> Callable[[dict[str, Any]], float | None]:
    """What ChatKit's server takes by itself, as a share of what it takes with a store."""

    def share(server: dict[str, Any]) -> float | None:
        found = server.get("doors", {}).get(doors.THREADS, {})
        if doors.READY not in found:
            return None
        return float(found[doors.READY]["ms"] / found[name]["ms"])

    return share


def _leaks(server: dict[str, Any]) -> float | None:
    found = server.get("doors", {}).get("leaks")
    return None if found is None else float(len(found[doors.OURS]))


def table(results: Results) -> str:
    """All goals with what was measured, as text."""
    measured = [int(size) for server in results.values() for size in server["sizes"]]
    size = _SIZE if _SIZE in measured else max(measured, default=_SIZE)
    rows = [["goal", "N", *results]]
    rows += [
        [
            goal.what,
            f"{goal.size:,}" if goal.size else "",
            *(str(goal.cell(title, server)) for title, server in results.items()),
        ]
        for goal in goals(size)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _found(*path: str) -> Callable[[dict[str, Any]], float | None]:
    def find(server: dict[str, Any]) -> float | None:
        found: Any = server
        for name in path:
            found = found.get(name) if found else None
        return None if found is None else float(found)

    return find


def _against_peers(server: dict[str, Any], size: int) -> float | None:
    """Over the fastest library that is asked by metadata, and not by how it is laid out."""
    timings = server["sizes"].get(str(size), {}).get("operations", {}).get(op.NEWEST, {})
    others = timings.keys() - {op.OURS, op.PLAIN, _NAMESPACE_PER_OWNER}
    return max((timings[other]["ratio"] for other in others), default=None)


def _largest_growth(server: dict[str, Any]) -> float | None:
    walks = [at_size["walk"] for at_size in server["sizes"].values() if at_size["walk"]]
    return walks[-1]["growth"] if walks else None


def _short(number: float) -> str:
    if number < 0.1:
        return f"{number:.2g}"
    return f"{number:.3f}".rstrip("0").rstrip(".")
