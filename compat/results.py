"""What the tests said: kept as JSON, shown in docs/compatibility.md, in short in the README."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .matrix import Combination

BEGIN = "<!-- Written by `make compat`: begin -->"
END = "<!-- Written by `make compat`: end -->"
RESULTS = Path(__file__).with_name("results.json")
ROOT = Path(__file__).parents[1]
SDK = "the SDK's own"
COLUMNS = ("SQLite", "PostgreSQL", "MariaDB", SDK)


@dataclass(frozen=True)
class Outcome:
    """What one run of pytest came to."""

    passed: int
    failed: int
    skipped: int

    @classmethod
    def of(cls, output: str, returncode: int) -> Outcome:
        """Read the last line of pytest's output."""
        lines = output.strip().splitlines()
        counted = {
            name.rstrip("s"): int(number)
            for number, name in re.findall(
                r"(\d+) (passed|failed|errors?|skipped)", lines[-1] if lines else ""
            )
        }
        failed = counted.get("failed", 0) + counted.get("error", 0)
        # What stops before its first test has no number, and has failed all the same.
        if returncode and not failed:
            failed = 1
        return cls(counted.get("passed", 0), failed, counted.get("skipped", 0))

    @property
    def is_clean(self) -> bool:
        """Whether there were tests, and all of them passed."""
        return bool(self.passed) and not self.failed and not self.skipped

    def __str__(self) -> str:
        told = f"{self.passed} passed"
        told += f", {self.failed} failed" if self.failed else ""
        return told + (f", {self.skipped} skipped" if self.skipped else "")


Results = dict[Combination, dict[str, Outcome]]


def read() -> Results:
    """The results of runs before."""
    if not RESULTS.exists():
        return {}
    return {
        Combination(**one["combination"]): {
            name: Outcome(**outcome) for name, outcome in one["outcomes"].items()
        }
        for one in json.loads(RESULTS.read_text(encoding="utf-8"))
    }


def write(results: Mapping[Combination, Mapping[str, Outcome]]) -> None:
    """Keep the results, and put their tables into the documentation."""
    document = [
        {
            "combination": asdict(combination),
            "outcomes": {name: asdict(outcome) for name, outcome in outcomes.items()},
        }
        for combination, outcomes in results.items()
    ]
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for path, text in pages(results).items():
        path.write_text(text, encoding="utf-8")


def pages(results: Mapping[Combination, Mapping[str, Outcome]]) -> dict[Path, str]:
    """The pages that show the results, as they should be."""
    texts = {}
    for name, shown in (("docs/compatibility.md", table), ("README.md", summary)):
        path = ROOT / name
        before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        texts[path] = f"{before}{BEGIN}\n\n{shown(results)}\n\n{END}{after}"
    return texts


def summary(results: Mapping[Combination, Mapping[str, Outcome]]) -> str:
    """The combinations on which every test passed on every database, a row a Python."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for one, outcomes in results.items():
        if all(name in outcomes and outcomes[name].is_clean for name in COLUMNS):
            sqlalchemy, sdk = found.setdefault(one.python, ({}, {}))
            sqlalchemy[one.sqlalchemy] = sdk[one.sdk] = None
    lines = ["| Python | SQLAlchemy | openai-agents |", "|---|---|---|"]
    for python, versions in found.items():
        lines.append(f"| {' | '.join([python, *map(', '.join, versions)])} |")
    return "\n".join(lines)


def table(results: Mapping[Combination, Mapping[str, Outcome]]) -> str:
    """The results in Markdown: a row a combination, a dash for what was not run."""
    lines = [
        "| Python | SQLAlchemy | openai-agents | " + " | ".join(COLUMNS) + " |",
        "|---|---|---|" + "---|" * len(COLUMNS),
    ]
    for one, outcomes in results.items():
        cells = [str(outcomes.get(name, "-")) for name in COLUMNS]
        lines.append(f"| {' | '.join([one.python, one.sqlalchemy, one.sdk, *cells])} |")
    return "\n".join(lines)
