"""How long the survivors of a fault take to see it, by cause, against the time-out of the group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from takeback.figures import style

TITLE = "What the survivors see, and when"
TEXT = (
    "Time from the fault to the first error on a rank that it spared, against the time-out of the process group. The "
    "bars are the time-outs. A mark at the top stands for a fault that no rank had seen when the run was ended."
)
TIMEOUT = "trainer.timeout"
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<", ">")
USUAL = "the library's own"


def draw(experiment: Any, verdicts: pd.DataFrame, out: Path, evidence_of: Any = None) -> Path:
    """Write the figure to ``out`` as SVG; a mark a cell."""
    style.use()
    cells = measured(experiment, verdicts)
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    columns, causes = list(cells.column.unique()), list(cells.fault.unique())
    for place, name in enumerate(columns):
        seconds = cells.timeout[cells.column == name].iloc[0]
        if seconds:
            axis.hlines(seconds, place - 0.42, place + 0.42, color=style.FAINT, lw=5, alpha=0.4, zorder=0)
    colours = sns.color_palette("colorblind", len(causes))
    for number, (cause, colour) in enumerate(zip(causes, colours, strict=True)):
        part = cells[cells.fault == cause]
        shift = (number + 0.5) / len(causes) - 0.5
        x = [columns.index(name) + 0.8 * shift for name in part.column]
        sns.scatterplot(x=x, y=part.seconds, ax=axis, color=colour, marker=MARKERS[number % len(MARKERS)], s=38,
                        label=cause, linewidth=0)  # fmt: skip
    unseen = cells[~cells.seen]
    if len(unseen):
        axis.axhline(unseen.seconds.max(), color=style.INK, lw=0.8, ls=":")
        axis.text(-0.48, unseen.seconds.max() * 1.08, "not seen by the end", fontsize=8)
    axis.set(yscale="log", xlabel="time-out of the process group", ylabel="seconds to the first error",
             xlim=(-0.5, len(columns) - 0.5))  # fmt: skip
    axis.set_xticks(range(len(columns)), columns)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return style.save(figure, out, f"{TITLE}: {experiment.name}")


def table(experiment: Any, verdicts: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Cause and time-out; what was seen, when, and whom it names."""
    rows = []
    for (cause, column), part in measured(experiment, verdicts).groupby(["fault", "column"], sort=False):
        high = part.seconds.max()
        span = dict.fromkeys(f"{seconds:.2f}" for seconds in (part.seconds.min(), high))
        seen = f"{' to '.join(span)} s" if part.seen.all() else f"not within {high:.0f} s"
        kinds = dict.fromkeys(kind for saw in part.survivors_saw.dropna() for kind in saw.split("; "))
        rows.append([cause, column, str(len(part)), seen, "; ".join(kinds), _named(part)])
    return ["Cause", "Time-out", "Cells", "First seen after", "What is seen", "Whom it names"], rows


def measured(experiment: Any, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Cells that ran, with ``column`` and ``timeout`` (seconds, 0 for the library's), ``seen`` and ``seconds``."""
    ends = {cell.id: cell.killed.notice or cell.killed.deadline for cell in experiment.cells}
    cells = verdicts[verdicts.survivors_saw.notna()].copy()
    cells["timeout"] = cells[TIMEOUT].astype(float) if TIMEOUT in cells else 0.0
    cells = cells.sort_values("timeout", key=lambda value: value.where(value > 0, float("inf")), kind="stable")
    cells["column"] = [f"{seconds:g} s" if seconds else USUAL for seconds in cells.timeout]
    cells["seen"] = cells.detect_s.notna()
    cells["seconds"] = [
        float(seconds) if seen else ends[cell]
        for cell, seconds, seen in zip(cells.cell, cells.detect_s, cells.seen, strict=True)
    ]
    return cells


def _named(part: pd.DataFrame) -> str:
    whom = [word for word, column in (("the lost rank", "names_peer"), ("another rank", "blames_other"))
            if part[column].fillna(False).any()]  # fmt: skip
    return " or ".join(whom) or "nobody"
