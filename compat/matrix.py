"""Which releases are tried together: not all with all, but each with one that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.version import Version

from .installing import releases

DISTRIBUTION = "agents-session-metadata"
SQLALCHEMY_2_1 = Version("2.1")


@dataclass(frozen=True, order=True)
class Combination:
    """What is installed together."""

    python: str
    sqlalchemy: str
    sdk: str

    @property
    def name(self) -> str:
        """The combination in a word."""
        return f"python{self.python}-sqlalchemy{self.sqlalchemy}-sdk{self.sdk}"


def combinations(pythons: Sequence[str]) -> list[Combination]:
    """What to try on these releases of Python, oldest first.

    Each Python runs with the oldest and the newest SQLAlchemy that it can; one of them also with
    the newest 2.0 and the oldest 2.1, and with every other release of the SDK.
    """
    middle = pythons[len(pythons) // 2]
    *older, newest_sdk = _allowed("openai-agents", pythons[-1])
    chosen = []
    for python in pythons:
        found = _allowed("sqlalchemy", python)
        edges = {found[0], found[-1]}
        if python == middle:
            edges |= {[one for one in found if one < SQLALCHEMY_2_1][-1]}
            edges |= {next((one for one in found if one >= SQLALCHEMY_2_1), found[-1])}
            chosen += [Combination(python, str(found[-1]), str(sdk)) for sdk in older]
        chosen += [Combination(python, str(edge), str(newest_sdk)) for edge in edges]
    return sorted(chosen, key=_order)


def _order(one: Combination) -> tuple[Version, ...]:
    return Version(one.python), Version(one.sqlalchemy), Version(one.sdk)


def _allowed(project: str, python: str) -> list[Version]:
    """The releases of a project that this package allows on a Python, oldest first."""
    wanted = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
    wanted = [one for one in wanted if one.name == project]
    environment = {"python_version": python, "python_full_version": python, "extra": ""}
    ours = [one for one in wanted if one.marker is None or one.marker.evaluate(environment)]
    found = releases(project, python)
    return [one for one in found if all(one in wish.specifier for wish in ours)]
