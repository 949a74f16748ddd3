"""Prints docs/dependencies.md: `make dependencies`.

The licenses are those that the installed packages state. The versions are those of constraints.txt.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGE = "agents-session-metadata"
TOOLS = {"dev", "docs"}
HEAD = """\
# Dependencies

The packages that this package installs on Linux with Python 3.11 or later, in the versions that the
tests use, with the license that each states in its metadata. Of two versions, the first is for
Python 3.10. If no extra is named, the package is always installed. `make dependencies` writes this
page.

| package | version | license | extras |
|---|---|---|---|
"""


def pinned() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE):
        found.setdefault(name, []).append(version)
    return found


def required(name: str, extras: frozenset[str] = frozenset()) -> dict[str, frozenset[str]]:
    """Returns the packages that a package requires in this environment, with the extras of each."""
    found: dict[str, frozenset[str]] = {}
    for each in map(Requirement, distribution(name).requires or ()):
        marker = each.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            key = canonicalize_name(each.name)
            found[key] = found.get(key, frozenset()) | each.extras
    return found


def installed_with(extra: str) -> set[str]:
    """Returns all packages that an extra installs; if it is empty, those of every installation."""
    waiting = [(PACKAGE, frozenset({extra} - {""}))]
    seen = set(waiting)
    while waiting:
        for each in required(*waiting.pop()).items():
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return {name for name, _ in seen} - {PACKAGE}


def license_of(name: str) -> str:
    about = distribution(name).metadata
    stated = about.get("License-Expression") or about.get("License") or ""
    if stated and "\n" not in stated:
        return stated
    classifiers = [
        each for each in about.get_all("Classifier", []) if each.startswith("License ::")
    ]
    if classifiers:
        return ", ".join(each.rpartition(" :: ")[2] for each in classifiers)
    text = distribution(name).read_text(f"licenses/{about['License-File']}") or "not stated"
    return text.strip().partition("\n")[0]


def page() -> str:
    versions = pinned()
    extras = {*distribution(PACKAGE).metadata.get_all("Provides-Extra", [])} - TOOLS
    always = installed_with("")
    users: dict[str, list[str]] = {name: [] for name in always}
    for extra in sorted(extras):
        for name in installed_with(extra) - always:
            users.setdefault(name, []).append(f"`{extra}`")
    rows = [
        (name, ", ".join(versions[name]), license_of(name), ", ".join(users[name]))
        for name in sorted(users)
    ]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.stdout.write(page())
