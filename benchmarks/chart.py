"""The charts: how long a page of an owner takes, by the number of all sessions, and of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import operations as op
from .indexes import WITH, WITHOUT
from .results import Results

_STYLES = {
    op.OURS: ("#c0392b", "o", 2.6),
    op.PLAIN: ("#555555", "s", 1.4),
    "google-adk": ("#1f77b4", "^", 1.4),
    "LangGraph store": ("#2ca02c", "D", 1.4),
    "LangGraph store, namespace per owner": ("#8cc98c", "d", 1.4),
    "agno": ("#9467bd", "v", 1.4),
}
_INDEX_STYLES = {
    WITH: _STYLES[op.OURS],
    WITHOUT: ("#e6a49c", "o", 1.4),
    op.PLAIN: _STYLES[op.PLAIN],
    "LangGraph store, namespace per owner": _STYLES["LangGraph store, namespace per owner"],
}
_SHOWN = ("SQLite", "PostgreSQL")


def draw(results: Results, path: Path) -> None:
    """Write `latency.svg`, with a panel for SQLite and one for PostgreSQL, and `indexes.svg`."""
    by_size = {
        title: {
            int(size): at_size["operations"][op.NEWEST]
            for size, at_size in results[title]["sizes"].items()
        }
        for title in _SHOWN
        if results.get(title, {}).get("sizes")
    }
    title = "The 20 newest sessions of one owner in a hundredth of all, with metadata"
    _draw(by_size, path, title, "sessions", _STYLES)
    by_owner = {
        title: {int(count): timings for count, timings in server["indexes"]["owners"].items()}
        for title, server in results.items()
        if server.get("indexes", {}).get("owners")
    }
    title = "The 20 newest sessions of one owner among 100,000, with metadata"
    _draw(by_owner, path.with_name("indexes.svg"), title, "sessions of the owner", _INDEX_STYLES)


def _draw(
    shown: dict[str, dict[int, Any]],
    path: Path,
    heading: str,
    counted: str,
    styles: dict[str, tuple[str, str, float]],
) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    # Text stays text: small, searchable, and the same file for the same numbers.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "latency", "font.size": 11})
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    if not shown:
        return
    figure, panels = plt.subplots(
        1, len(shown), figsize=(5.6 * len(shown), 4.8), sharey=True, squeeze=False
    )
    for panel, (title, at) in zip(panels[0], shown.items(), strict=True):
        for name, (colour, marker, width) in styles.items():
            points = [(count, found[name]["ms"]) for count, found in at.items() if name in found]
            if points:
                panel.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    marker=marker,
                    linewidth=width,
                    label=name,
                )
        panel.set(xscale="log", yscale="log", title=title, xlabel=counted)
        panel.grid(visible=True, which="major", color="#dddddd")
        panel.spines[["top", "right"]].set_visible(False)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
    panels[0][0].set_ylabel("milliseconds a call")
    figure.suptitle(heading)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)
