"""What `diagnose` finds."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from agents_session_metadata.quoting import escaped

_QUOTED = re.compile(r"""(["'`]).*?\1""", re.DOTALL)
"""A quoted name or text; one that contains its quotation mark is found in parts."""

EQUAL_ROWS = "there are rows with equal keys: decide which to keep, and delete the others"
EQUAL_ITEMS = "there are messages with equal ids: give each an id of its own"
EQUAL_PARENTS = (
    "there are rows with equal keys, and deleting one of them also deletes the rows of other tables"
    " that refer to the one that stays: decide which to keep, make a backup, drop the foreign keys"
    " to this table and the triggers on it, and only then delete the others. Once the primary key"
    " exists, doctor prints the statements that create what was dropped"
)

_EXAMPLES = 3

Level: TypeAlias = Literal["error", "warning", "info"]
Statements: TypeAlias = "tuple[str, ...]"


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        level: `error` if a promise of the package does not hold, `warning` if it holds within
            limits that the problem names, `info` for what is no problem.
        check: What was looked at, such as `indexes`.
        problem: What is wrong, in a sentence, and what to do if there is no `repair`.
        repair: The statements that repair it, in order. They add what is missing, widen columns,
            replace triggers of this package or drop those whose tables are gone, revoke the
            privilege to execute their functions, and write rows that this package derives; they
            never touch what an application wrote. On PostgreSQL, the first may set the search path.
            Empty if no such statement repairs the problem.
    """

    level: Level
    check: str
    problem: str
    repair: Statements = ()

    def printable(self, first: tuple[str, ...]) -> Finding:
        """The same finding with statements before its own, if all of them can be printed.

        A name with a line break could begin what looks like another statement or problem.
        """
        repair = (*first, *self.repair) if self.repair else ()
        quoted = (found[0] for each in repair for found in _QUOTED.finditer(each))
        if all(escaped(each) == each for each in quoted):
            return replace(self, repair=repair)
        problem = f"{self.problem}; no statement is printed for names that have line breaks"
        return replace(self, problem=f"{problem} or other control characters", repair=())

    def repaired_above(self) -> Finding:
        """The same finding, if the statements of an earlier finding repair it too."""
        return replace(self, problem=f"{self.problem}; the statements above repair it", repair=())

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON."""
        return {**asdict(self), "repair": list(self.repair)}


@dataclass
class Tally:
    """A count of values or rows, and the names of the first of them."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        """Count one."""
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(name)

    def __str__(self) -> str:
        more = self.count - len(self.examples)
        return ", ".join(self.examples) + (f" and {more} more" if more else "")
