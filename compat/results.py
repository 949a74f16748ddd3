"""What the tests said: kept as JSON and shown in docs/compatibility.md."""

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
PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
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
    """Keep the results, and put their table into the documentation."""
    document = [
        {
            "combination": asdict(combination),
            "outcomes": {name: asdict(outcome) for name, outcome in outcomes.items()},
        }
        for combination, outcomes in results.items()
    ]
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


def page(results: Mapping[Combination, Mapping[str, Outcome]]) -> str:
    """The page that shows the results, as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}"


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
