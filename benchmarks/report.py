"""The results: a table in Markdown per comparison, with a column per server."""

from __future__ import annotations

import time
from pathlib import Path

from .measure import Timings


class Report:
    """Prints each result when it is measured, and all of them as tables."""

    def __init__(self, output: Path | None = None) -> None:
        self._output = output
        self._began = time.monotonic()
        self._server = ""
        self._versions: dict[str, str] = {}
        self._sections: dict[str, dict[str, dict[str, str]]] = {}

    def begin(self, title: str, version: str) -> None:
        """Begin the column of a server."""
        self._server = title
        self._versions[title] = version

    def progress(self, text: str) -> None:
        """Print what is done now."""
        seconds = time.monotonic() - self._began
        print(f"[{seconds:6.0f} s] {self._server}: {text}", flush=True)

    def compare(
        self,
        section: str,
        what: str,
        timings: Timings,
        ours: str,
        other: str,
        *,
        limit: float | None = None,
    ) -> None:
        """Add the milliseconds of two parties and their ratio, with the greatest allowed one."""
        times = " / ".join(_number(timings.milliseconds(name)) for name in (ours, other))
        self._add(section, what, f"{times} ({_ratio(timings.ratio(ours, other), limit)})")

    def ratio(self, section: str, what: str, ratio: float, *, limit: float | None = None) -> None:
        """Add a ratio without the times that it was computed from."""
        self._add(section, what, _ratio(ratio, limit))

    def milliseconds(
        self, section: str, what: str, milliseconds: float, *, limit: float | None = None
    ) -> None:
        """Add the time of one call."""
        self._add(section, what, _ratio(milliseconds, limit))

    def markdown(self) -> str:
        """All tables."""
        tables = [f"{server} {version}" for server, version in self._versions.items()]
        for section, rows in self._sections.items():
            servers = [
                server
                for server in self._versions
                if any(server in cells for cells in rows.values())
            ]
            lines = [["what", *servers], ["---"] * (len(servers) + 1)]
            lines += [
                [what, *(cells.get(server, "") for server in servers)]
                for what, cells in rows.items()
            ]
            body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            tables.append(f"## {section}\n\n{body}")
        return "\n\n".join(tables) + "\n"

    def _add(self, section: str, what: str, cell: str) -> None:
        self._sections.setdefault(section, {}).setdefault(what, {})[self._server] = cell
        self.progress(f"{what}: {cell}")
        # After each result: a run can take hours, and end before its last one.
        if self._output is not None:
            self._output.write_text(self.markdown(), encoding="utf-8")


def _ratio(measured: float, limit: float | None) -> str:
    if limit is None:
        return _number(measured)
    missed = ", missed" if measured > limit else ""
    return f"{_number(measured)}, goal {_number(limit)}{missed}"


def _number(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"
