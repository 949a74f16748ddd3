"""The findings of `diagnose`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    `level` is `error` if something is wrong, `warning` if it works within limits that the problem
    names, and `info` otherwise. `check` is the kind of object, such as `indexes`. `problem` also
    says what to do. `repair` has statements in order: each is a CREATE, or a DROP TRIGGER of a
    trigger of this package that the next statements replace.
    """

    level: Level
    check: str
    problem: str
    repair: tuple[str, ...] = ()
