"""What `diagnose` finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        level: `error` when a promise of the package does not hold, `warning` when it holds within
            limits that the problem names, `info` for what is no problem.
        check: What was looked at, such as `indexes`.
        problem: What is wrong, in a sentence.
        repair: The statements that repair it, in order; none where SQL cannot.
    """

    level: Level
    check: str
    problem: str
    repair: tuple[str, ...] = ()

    def repaired_above(self) -> Finding:
        """The same, when the statements of a finding before it repair it too."""
        return replace(self, problem=f"{self.problem}; the statements above repair it", repair=())

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON."""
        return {**asdict(self), "repair": list(self.repair)}
