"""Ranks that went on from steps of their own: the loss that each told at each of its steps, and how far off it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from takeback.figures import panels, style
from takeback.figures.distance import distance

TITLE = "Two runs in one"
TEXT = (
    "Ranks that restored different steps, followed to the end: each tells its own number of the step, and the loss is "
    "that of a sum of both. Grey is the run that was left alone. Below, the distance to it at the same number."
)


def draw(experiment: Any, verdicts: pd.DataFrame, out: Path, evidence_of: Callable[[str], Any]) -> Path:
    """Write the figure to ``out`` as SVG: a pair of axes a cell whose ranks restored different steps."""
    style.use()
    cells = [cell for cell in experiment.cells if len(set(restored(evidence_of(cell.resumed.id).events).values())) > 1]
    if not cells:
        figure = plt.figure(figsize=(4, 0.5))
        figure.text(0, 0.5, "all ranks restored the same step", va="center")
        return style.save(figure, out, f"{TITLE}: all ranks restored the same step")
    figure, pairs = panels.grid(len(cells))
    largest, heads = 0, []
    for cell, (top, bottom) in zip(cells, pairs, strict=True):
        heads.append(top.set_title(f"{cell.control or 'matrix'}, world {cell.resumed.world}", fontsize=9))
        evidence, reference = evidence_of(cell.resumed.id), evidence_of(cell.reference.id).losses
        whole = reference[reference["rank"] == reference["rank"].min()]
        top.plot(whole.step, whole.loss, color=style.ROLES["reference"], lw=5, alpha=0.5)
        bottom.axhline(0, color=style.ROLES["reference"], lw=5, alpha=0.5, zorder=1)
        steps = restored(evidence.events)
        for number, colour in zip(sorted(steps), sns.color_palette("colorblind", len(steps)), strict=True):
            mine = evidence.losses[evidence.losses["rank"] == number]
            shape = {"color": colour, "marker": style.MARKERS[number % len(style.MARKERS)], "ms": 3.5, "lw": 0.8}
            top.plot(mine.step, mine.loss, label=f"rank {number}, from step {steps[number]}", **shape)
            found = distance(mine, reference, None, by_rank=False)
            bottom.plot(found.steps, found.ulp, clip_on=False, **shape)
            largest = max(largest, found.largest)
        top.legend(fontsize=7)
    panels.ulp_axis(pairs[0][1], largest)
    return style.save(figure, out, f"{TITLE}: {experiment.name}", panels.box(figure, pairs, heads))


def table(experiment: Any, verdicts: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Cells that went on from several steps at once, and what the suite says of them."""
    told = verdicts[verdicts.diagnosis.str.contains("restored different steps", regex=False)]
    rows = [[row.cell, row.verdict, row.diagnosis] for row in told.itertuples()]
    return ["Cell", "Verdict", "Diagnosis"], rows


def restored(events: pd.DataFrame) -> dict[int, int]:
    """Restored step by rank."""
    receipts = events[(events.kind == "restored") & events.step.notna()]
    return {int(rank): int(step) for rank, step in zip(receipts["rank"], receipts.step, strict=True)}
