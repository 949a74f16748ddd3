"""The figures of each fault: printed as lines, kept as JSON, shown as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

BEGIN = "<!-- Written by `make stress`: begin -->"
END = "<!-- Written by `make stress`: end -->"
_SHOWN = 5


@dataclass
class Figures:
    """What an audit counted.

    Attributes:
        acknowledged: Calls that returned.
        found: Those whose effect is there.
        lost: Those whose effect is not.
        half: Things that are there in part only, elements that do not fit their lists among them.
        twice: Calls that were applied more than once.
        unasked: Effects of no known call.
        orphans: Rows without what they belong to.
        unknown: Calls that raised, or whose caller died.
        applied: Those of them that were applied nevertheless.
        churned: Calls that returned on the session that all fill and delete; none of the others.
        retried: Errors after which the package tried again by itself.
        retried_codes: These, by code.
        errors: Errors that were raised, by name and code.
        strange: Errors that SQLAlchemy does not raise.
        details: What is wrong, in words.
    """

    acknowledged: int = 0
    found: int = 0
    lost: int = 0
    half: int = 0
    twice: int = 0
    unasked: int = 0
    orphans: int = 0
    unknown: int = 0
    applied: int = 0
    churned: int = 0
    retried: int = 0
    retried_codes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def tell_half(self, what: str) -> None:
        """Count something that is there in part, and say what it is."""
        self.half += 1
        self.details.append(f"half there: {what[:200]}")

    @property
    def is_whole(self) -> bool:
        """Whether the data is as it was promised."""
        wrong = self.lost, self.half, self.twice, self.unasked, self.orphans, self.strange
        return not any(wrong)


@dataclass
class Result:
    """One fault on one server.

    Attributes:
        fault: What was done to it.
        server: What it was done to, with its version.
        figures: What was counted.
        seconds: How long it took.
        notes: What else was seen.
        broken: The promises that were not kept.
    """

    fault: str
    server: str
    figures: Figures
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def require(self, held: bool, promise: str) -> None:
        """Write down a promise that was not kept."""
        if not held:
            self.broken.append(promise)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return self.figures.is_whole and not self.broken

    def line(self) -> str:
        """One line for people."""
        figures = self.figures
        parts = [
            f"{figures.acknowledged} acknowledged, {figures.found} found, {figures.lost} lost",
            f"{figures.half} half, {figures.twice} twice, {figures.orphans} orphans",
            f"{figures.unknown} unknown ({figures.applied} applied)",
            f"{figures.churned} churned, {figures.retried} retried",
            f"errors {_counts(figures.errors)}",
            *self.notes,
            f"{self.seconds:.0f} s",
        ]
        wrong = [*self.broken, *figures.strange[:_SHOWN], *figures.details[:_SHOWN]]
        lines = [f"{self.fault} · {self.server}: {'; '.join(parts)}"]
        lines += [f"    BROKEN: {each}" for each in wrong]
        if not self.kept and not wrong:
            lines.append("    BROKEN: see the figures")
        return "\n".join(lines)


def write(results: list[Result], path: Path, machine: dict[str, Any]) -> None:
    """Keep the results as JSON."""
    document = {**machine, "results": [asdict(result) for result in results]}
    path.write_text(json.dumps(document, indent=2) + "\n")


def show(results: list[Result], page: Path, machine: dict[str, Any]) -> None:
    """Put the table between its marks in a page."""
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    words = fill(f"{machine['date']}, {machine['cores']} cores; {versions}.", 101)
    page.write_text(f"{before}{BEGIN}\n{words}\n\n{table(results)}\n{END}{after}")


def table(results: list[Result]) -> str:
    """The table of the faults."""
    heads = [
        *["fault", "server", "acknowledged", "lost", "half there", "applied twice", "orphans"],
        *["errors raised (applied)", "retried", "seconds"],
    ]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "--:|" * (len(heads) - 2)]
    for result in results:
        figures = result.figures
        cells = [
            *[result.fault, result.server, figures.acknowledged, figures.lost, figures.half],
            *[figures.twice, figures.orphans, f"{figures.unknown:,} ({figures.applied:,})"],
            *[figures.retried, f"{result.seconds:.0f}"],
        ]
        lines.append(
            f"| {' | '.join(f'{cell:,}' if type(cell) is int else cell for cell in cells)} |"
        )
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    shown = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
    return shown or "none"
