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
    figure = plt.figure(figsize=(9, 2.6 + 0.32 * len(rows)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[2.2, 0.5 + 0.32 * len(rows)])
    speed, cost = above.subplots(1, 2, sharey=True)
    far = below.subplots()
    for axis, name, title in (
        (speed, "cells a minute", "Cells a minute"),
        (cost, "CPU, s a cell", "CPU seconds a cell"),
    ):
        data = samples[(samples.figure == name) & samples.way.isin(WAYS)]
        sns.stripplot(
            data, x="value", y="way", order=WAYS, ax=axis, color=style.ROLES["resumed"], alpha=0.7, size=6, jitter=False
        )
        axis.set(xscale="log", xlabel="", ylabel="", title=title)
        axis.grid(axis="x")
        for place, way in enumerate(WAYS):
            middle = data[data.way == way].value.median()
            axis.annotate(f"{middle:.3g}", (middle, place), (0, 7), textcoords="offset points", ha="center")
        axis.margins(x=0.15)
    for place, row in enumerate(rows):
        shares = [share(float(row[name]), row["target"]) for name in ("min", "median", "max")]
        colour, marker = (MET, "o") if row["met"] == "yes" else (UNMET, "X")
        far.plot(shares, [place] * 3, color=colour, lw=2)
        far.plot(shares[1], place, marker, color=colour, ms=7)
    far.axvline(1, color=style.FAINT, lw=1)
    far.set(xscale="log", title="Distance to each target: met left of 1", ylim=(len(rows) - 0.5, -0.5))
    said = [f"{row['figure']} {row['target'].replace('<=', '≤').replace('>=', '≥')}" for row in rows]
    far.set_yticks(range(len(rows)), said)
    far.grid(axis="x")
    unmet = sum(row["met"] == "no" for row in rows)
    return style.save(figure, out, f"Speed, cost and targets; {unmet} of {len(rows)} targets unmet")


def share(value: float, target: str) -> float:
    """``value`` as a share of what is allowed: at most 1 if the target is met."""
    sign, bound = target.split()
    return value / float(bound) if sign == "<=" else float(bound) / value
