"""What a failure costs against the interval between checkpoints, and the interval that Young and Daly would choose.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974); J. T. Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from takeback.figures import style

TITLE = "Lost work against the interval between checkpoints"
TEXT = (
    "One failure a run: the saves up to the end, the work that was lost, and the time to notice and to be back, as "
    "measured in these runs. The line is the model, the saves plus half an interval, with the measured cost of a save; "
    "its least value is where Young's interval lies."
)
INTERVAL = "trainer.save_every"


def draw(experiment: Any, verdicts: pd.DataFrame, out: Path, evidence_of: Any = None) -> Path:
    """Write the figure to ``out`` as SVG: a mark a measured interval, stacked by what it is spent on."""
    style.use()
    found, costs = measured(experiment, verdicts)
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    parts = {"saves": "saves", "lost": "work done again", "back": "noticed, and back at work"}
    base = np.zeros(len(found))
    for (name, label), colour in zip(parts.items(), sns.color_palette("colorblind", 3), strict=True):
        axis.bar(found.steps.astype(str), found[name], bottom=base, label=label, color=colour, width=0.6)
        base += found[name].to_numpy()
    model = [costs.model(steps) + found.back.mean() for steps in found.steps]
    axis.plot(found.steps.astype(str), model, color=style.INK, marker="o", ms=4, lw=1.2, label="model")
    axis.set(xlabel="steps between checkpoints", ylabel="seconds a failure")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return style.save(figure, out, f"{TITLE}: {experiment.name}")


def table(experiment: Any, verdicts: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Each interval with its parts, and the intervals that the model chooses."""
    found, costs = measured(experiment, verdicts)
    rows = [
        [f"{row.steps} steps", *(f"{1000 * row[name]:.0f} ms" for name in ("saves", "lost", "back", "total"))]
        for _, row in found.iterrows()
    ]
    best = found.loc[found.total.idxmin()]
    chosen = f"Young {costs.young:.1f} steps, Daly {costs.daly:.1f}; least measured at {int(best.steps)}"
    rows.append([chosen, f"a save {1000 * costs.save:.1f} ms", f"a step {1000 * costs.step:.1f} ms", "", ""])
    return ["Between checkpoints", "Saves", "Done again", "Noticed, and back", "Together"], rows


class Costs:
    """What was measured, and the model: seconds of a ``save``, of a ``step``, and steps between two failures."""

    def __init__(self, save: float, step: float, between: int) -> None:
        self.save, self.step, self.between = save, step, between

    def model(self, steps: float) -> float:
        """Seconds of saves and lost work for one failure, with ``steps`` between checkpoints."""
        return self.between / steps * self.save + steps * self.step / 2

    @property
    def young(self) -> float:
        """Young's interval in steps: the least of :meth:`model`."""
        return math.sqrt(2 * self.save * self.between * self.step) / self.step

    @property
    def daly(self) -> float:
        """Daly's interval in steps, of higher order in save / time between failures."""
        mean = self.between * self.step
        if self.save >= 2 * mean:
            return self.between
        part = math.sqrt(self.save / (2 * mean))
        return (math.sqrt(2 * self.save * mean) * (1 + part / 3 + part**2 / 9) - self.save) / self.step


def measured(experiment: Any, verdicts: pd.DataFrame) -> tuple[pd.DataFrame, Costs]:
    """A row an interval (``steps``; seconds: ``saves``, ``lost``, ``back``, ``total``), and the costs behind them."""
    cells = verdicts[verdicts.lost_s.notna() & verdicts.save_s.notna() & verdicts.restart_s.notna()]
    steps = int(experiment.cells[0].killed.trainer["settings"]["steps"])
    save, step = float(cells.save_s.median()), float(cells.step_s.median())
    rows = []
    for interval, part in cells.groupby(cells[INTERVAL].astype(int)):
        saves = steps // interval * float(part.save_s.median())
        back = float((part.detect_s.fillna(0) + part.restart_s).mean())
        lost = float(part.lost_s.mean())
        rows.append({"steps": interval, "saves": saves, "lost": lost, "back": back, "total": saves + lost + back})
    return pd.DataFrame(rows), Costs(save, step, steps)
