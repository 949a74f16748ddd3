"""The chart: how long a page of an owner's sessions takes, by the number of all sessions."""

from __future__ import annotations

from pathlib import Path

from . import operations as op
from .results import Results

_STYLES = {
    op.OURS: ("#c0392b", "o", 2.6),
    op.PLAIN: ("#555555", "s", 1.4),
    "google-adk": ("#1f77b4", "^", 1.4),
    "LangGraph store": ("#2ca02c", "D", 1.4),
    "LangGraph store, namespace per owner": ("#8cc98c", "d", 1.4),
    "agno": ("#9467bd", "v", 1.4),
}
_SHOWN = ("SQLite", "PostgreSQL")


def draw(results: Results, path: Path) -> None:
    """Write the chart as SVG: a panel for SQLite and one for PostgreSQL."""
    import matplotlib as mpl

    mpl.use("svg")
    # Text stays text: small, searchable, and the same file for the same numbers.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "latency", "font.size": 11})
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    shown = {title: found for title, found in results.items() if title in _SHOWN and found["sizes"]}
    if not shown:
        return
    figure, panels = plt.subplots(
        1, len(shown), figsize=(5.6 * len(shown), 4.8), sharey=True, squeeze=False
    )
    for panel, (title, server) in zip(panels[0], shown.items(), strict=True):
        for name, (colour, marker, width) in _STYLES.items():
            points = [
                (int(size), at_size["operations"][op.NEWEST][name]["ms"])
                for size, at_size in server["sizes"].items()
                if name in at_size["operations"][op.NEWEST]
            ]
            if points:
                panel.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    marker=marker,
                    linewidth=width,
                    label=name,
                )
        panel.set(xscale="log", yscale="log", title=title, xlabel="sessions")
        panel.grid(visible=True, which="major", color="#dddddd")
        panel.spines[["top", "right"]].set_visible(False)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
    panels[0][0].set_ylabel("milliseconds a call")
    figure.suptitle("The 20 newest sessions of one owner in a hundredth of all, with metadata")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)
