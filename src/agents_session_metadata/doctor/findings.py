"""What `diagnose` finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        level: `error` if something is wrong, `warning` if it works within limits that the problem
            names, `info` for what is no problem.
        check: The kind of thing, such as `indexes`.
        problem: What is wrong, in a sentence, and what to do about it.
        repair: The statements that create what is missing, in order. Each is a CREATE, or a
            DROP TRIGGER of a trigger of this package that the next statements replace.
    """

    level: Level
    check: str
    problem: str
    repair: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON."""
        return {**asdict(self), "repair": list(self.repair)}
