"""The figure of the bench: speed and cost of each way to run the same cells, and how far each target is."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from takeback.figures import style

WAYS = ("plain loop", "references shared", "Takeback", "floor")
MET, UNMET = style.VERDICTS["equal"][0], style.VERDICTS["different"][0]


def draw(samples: pd.DataFrame, rows: list[dict[str, str]], out: Path) -> Path:
    """Write the figure as SVG.

    Args:
        samples: columns ``way``, ``figure``, ``value``; of ``cells a minute`` and ``CPU, s a cell``.
        rows: lines of the table of targets; those with a target are drawn.
    """
    style.use()
    rows = [row for row in rows if row["target"] and not row["target"].endswith(" 0")]  # no share of nothing
    figure, (speed, cost, far) = plt.subplots(1, 3, figsize=(10, 0.9 + 0.32 * max(4, len(rows))))
    for axis, name, title in (
        (speed, "cells a minute", "Cells a minute"),
        (cost, "CPU, s a cell", "CPU seconds a cell"),
    ):
        data = samples[(samples.figure == name) & samples.way.isin(WAYS)]
        sns.stripplot(data, x="value", y="way", order=WAYS, ax=axis, color=style.ROLES["resumed"], alpha=0.7, size=6)
        axis.set(xscale="log", xlabel="", ylabel="", title=title)
        axis.grid(axis="x")
        for place, way in enumerate(WAYS):
            middle = data[data.way == way].value.median()
            axis.annotate(f"{middle:.3g}", (middle, place), (0, 7), textcoords="offset points", ha="center")
        axis.margins(x=0.15)
    for place, row in enumerate(rows):
        sign, bound = row["target"].split()
        low, middle, high = sorted(
            float(row[name]) / float(bound) if sign == "<=" else float(bound) / max(float(row[name]), 1e-12)
            for name in ("min", "median", "max")
        )
        colour = MET if row["met"] == "yes" else UNMET
        far.plot([max(low, 1e-3), max(high, 1e-3)], [place, place], color=colour, lw=2)
        far.plot(max(middle, 1e-3), place, "o" if row["met"] == "yes" else "X", color=colour, ms=7)
    far.axvline(1, color=style.FAINT, lw=1)
    far.set(xscale="log", title="Share of the target's limit", ylim=(len(rows) - 0.5, -0.5))
    far.set_yticks(
        range(len(rows)), [f"{row['figure']} {row['target'].replace('<=', '≤').replace('>=', '≥')}" for row in rows]
    )
    far.yaxis.tick_right()
    far.grid(axis="x")
    figure.tight_layout()
    unmet = sum(row["met"] == "no" for row in rows)
    return style.save(figure, out, f"Speed, cost and targets; {unmet} of {len(rows)} targets unmet")
