"""Metadata operations at growing numbers of sessions, beside the baseline and other libraries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from agents_session_metadata import SessionCatalog

from . import operations as op
from .data import LARGEST_OWNER, Corpus
from .databases import Server, StatementCounter
from .measure import Operation, Timings, contest
from .parties import Ours, Plain
from .walk import Walk, walk_in_new_process

LONGEST_LOAD, LONGEST_CALL = 600.0, 30.0
SMALL_PAGE, LARGE_PAGE = 10_000, 1_000_000
_CONNECTIONS = 9


@dataclass
class AtSize:
    """What was measured on one server with so many sessions.

    Attributes:
        size: How many.
        timings: This package and the baseline, in turns, by operation.
        peer_timings: This package and other libraries, in turns, by operation.
        load_seconds: How long filling the database took, by party.
        left_out: What was not measured, and why.
        differing: Who answers otherwise than this package, and to what.
        late_over_first: See the function of this name.
        walk: What `iter_sessions` took.
    """

    size: int
    timings: dict[str, Timings] = field(default_factory=dict)
    peer_timings: dict[str, Timings] = field(default_factory=dict)
    load_seconds: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    late_over_first: float = 0.0
    walk: Walk | None = None


@dataclass
class CatalogResults:
    """What was measured on one server."""

    sizes: list[AtSize] = field(default_factory=list)
    statements: dict[str, int] = field(default_factory=dict)
    same_page: Timings | None = None


@dataclass(frozen=True)
class Effort:
    """How long to measure an operation."""

    rounds: int
    seconds: float


async def measure_catalog(
    server: Server,
    sizes: Sequence[int],
    peers: Sequence[Callable[[], op.Party]],
    effort: Effort,
    results: CatalogResults,
    report: Callable[[str], None],
) -> None:
    """Measure everything on one server, from the smallest size to the largest.

    A peer is left out from where loading would take it over ten minutes, and of an operation from
    where one call would take it over half a minute, as the size before foretells.
    """
    small: Ours | None = None
    for size in sizes:
        before = results.sizes[-1] if results.sizes else None
        at_size = AtSize(size)
        results.sizes.append(at_size)
        ours = Ours()
        parties: list[op.Party] = [ours, Plain(), *(make() for make in peers)]
        parties = [each for each in parties if _can_load(each, at_size, before)]
        for party in parties:
            report(f"{server.title}: {size:,} sessions into {party.name}")
            began = time.perf_counter()
            await party.open(await server.create("catalog"), Corpus(size))
            at_size.load_seconds[party.name] = time.perf_counter() - began
        report(f"{server.title}: measuring with {size:,} sessions")
        await _measure_operations(parties, at_size, before, effort)
        if not results.statements:
            results.statements = await count_statements(ours)
        at_size.late_over_first = await late_over_first(ours)
        report(f"{server.title}: walking through {size:,} sessions")
        at_size.walk = await walk_in_new_process(ours.url)
        if small is not None and size == LARGE_PAGE:
            results.same_page = await contest(
                {"small": small.newest_of_fixed_owner, "large": ours.newest_of_fixed_owner},
                rounds=effort.rounds,
                seconds=effort.seconds,
            )
        kept = ours if size == SMALL_PAGE and LARGE_PAGE in sizes else None
        report(latency_table(server.title, at_size))
        for party in parties:
            if party is not kept:
                await _close(server, party)
        small = kept or small
    if small is not None:
        await _close(server, small)


async def _close(server: Server, party: op.Party) -> None:
    await party.close()
    await server.drop(party.url)


def _can_load(party: op.Party, at_size: AtSize, before: AtSize | None) -> bool:
    if before is None:
        return True
    if party.name not in before.load_seconds:
        at_size.left_out[party.name] = before.left_out[party.name]
        return False
    foretold = before.load_seconds[party.name] * at_size.size / before.size
    if party.name in (op.OURS, op.PLAIN) or foretold <= LONGEST_LOAD:
        return True
    at_size.left_out[party.name] = f"loading would take {foretold / 60:.0f} minutes"
    return False


async def _measure_operations(
    parties: Sequence[op.Party], at_size: AtSize, before: AtSize | None, effort: Effort
) -> None:
    calls = {party.name: party.operations() for party in parties}
    for operation in op.OPERATIONS:
        able: dict[str, Operation] = {}
        for name, known in calls.items():
            if operation not in known:
                continue
            last = before.peer_timings.get(operation) if before is not None else None
            is_peer = name not in (op.OURS, op.PLAIN)
            if is_peer and last is not None and before is not None:
                if name not in last.wall:
                    continue
                foretold = last.milliseconds(name) / 1000 * at_size.size / before.size
                if foretold > LONGEST_CALL:
                    at_size.left_out[f"{name}: {operation}"] = f"a call would take {foretold:.0f} s"
                    continue
            able[name] = known[operation]
        if operation not in (op.GET, op.SET):
            await _compare(operation, able, at_size)
        # Apart from the others, who take long, it gets many rounds.
        pair = {name: able[name] for name in (op.OURS, op.PLAIN)}
        at_size.timings[operation] = await contest(
            pair, rounds=effort.rounds, seconds=effort.seconds
        )
        del able[op.PLAIN]
        if len(able) > 1:
            at_size.peer_timings[operation] = await contest(
                able, rounds=effort.rounds, seconds=effort.seconds
            )


async def _compare(operation: str, able: dict[str, Operation], at_size: AtSize) -> None:
    """Note who answers otherwise than this package; the baseline must not.

    Raises:
        AssertionError: If the baseline does.
    """
    for number in range(4 if operation == op.STATUS else 1):
        answers = {name: await call(number) for name, call in able.items()}
        ours, plain = answers[op.OURS], answers[op.PLAIN]
        if operation in (op.FIND, op.STATUS, op.PRIORITY, op.TAGGED):
            assert ours == plain, f"the baseline differs in: {operation}"
        for name, answer in answers.items():
            if _number(answer) != _number(ours):
                at_size.differing.append(f"{name}: {operation}")


def latency_table(title: str, at_size: AtSize) -> str:
    """Milliseconds a call of everybody, as text."""
    parties = list(at_size.load_seconds)
    lines = [f"{title}, {at_size.size:,} sessions, ms a call:"]
    lines += ["| operation | " + " | ".join(parties) + " |", "|---" * (len(parties) + 1) + "|"]
    for operation, timings in at_size.timings.items():
        peers = at_size.peer_timings.get(operation, Timings())
        cells = []
        for party in parties:
            found = timings if party in timings.wall else peers
            cells.append(f"{found.milliseconds(party):.2f}" if party in found.wall else "-")
        lines.append("| " + " | ".join([operation, *cells]) + " |")
    lines += [f"left out: {what}: {why}" for what, why in at_size.left_out.items()]
    lines += [f"answers otherwise: {what}" for what in at_size.differing]
    if at_size.walk is not None:
        lines.append(
            f"iter_sessions: {at_size.walk.sessions:,} sessions in {at_size.walk.seconds:.1f} s,"
            f" {at_size.walk.growth:.1f} MB more after the first 1,000"
        )
    return "\n".join(lines)


def _number(answer: Any) -> int:
    return answer if isinstance(answer, int) else len(answer)


async def late_over_first(ours: Ours) -> float:
    """How much longer the 20th execution of "owner and status" takes than the first.

    On new connections each time, with all caches of the process warm: what differs is the plan of
    the database.
    """
    session = SessionCatalog(ours.engine).session("any")
    where = {"owner_id": LARGEST_OWNER, "status": op.status(1)}
    first, late = [], []
    for turn in range(_CONNECTIONS + 1):
        await ours.engine.dispose()
        await session.get_metadata()
        seconds = []
        for _ in range(24):
            began = time.perf_counter()
            await session.find_sessions_by_metadata(where)
            seconds.append(time.perf_counter() - began)
        if turn:
            first.append(seconds[0])
            late.append(median(seconds[17:]))
    return median(late) / median(first)


async def count_statements(ours: Ours) -> dict[str, int]:
    """How many statements calls of this package send, BEGIN and COMMIT aside."""
    operations = ours.operations()
    calls: dict[str, Operation] = {
        "get": operations[op.GET],
        "find": operations[op.FIND],
        "count": operations[op.COUNT],
        "page": operations[op.NEWEST],
        "set": operations[op.SET],
        "set with a list": ours.set_with_list,
    }
    found = {}
    for name, call in calls.items():
        await call(0)
        with StatementCounter(ours.engine) as counter:
            await call(1)
        found[name] = len(counter.statements)
    return found
