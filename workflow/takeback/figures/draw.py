"""All figures of an experiment, into the folder from which the page takes them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from takeback import evidence
from takeback.figures import further
from takeback.figures.heatmap import heatmap
from takeback.figures.overlay import overlay


def draw(experiment: Any, verdicts: pd.DataFrame, runs: Path, folder: Path) -> None:
    """Write the heat map, an overlay a backend and world, and the figures that the experiment asks for by name.

    Args:
        experiment: takeback.experiment.Experiment.
        verdicts: one row a cell, in the order of the experiment.
        runs: folder of the legs, whose losses and events are drawn.
        folder: gets ``verdicts.svg``, ``overlay-BACKEND-wWORLD.svg`` and ``further-NAME.svg``.

    Raises:
        EvidenceError: evidence of a leg is missing or can't be read.
    """
    heatmap(experiment, verdicts, folder / "verdicts.svg")
    told = partial(evidence.frames, runs, tables=("losses", "events"))
    ran = tuple(cell for cell, verdict in zip(experiment.cells, verdicts.verdict, strict=True) if verdict != "not-run")
    for backend, world in sorted({(cell.axes["backend"], cell.axes["world"])
                                  for cell in experiment.cells if not cell.control}):  # fmt: skip
        overlay(replace(experiment, cells=ran), backend, world, told, folder / f"overlay-{backend}-w{world}.svg")
    for name in experiment.figures:
        further.get(name).draw(experiment, verdicts, folder / f"further-{name}.svg", told)
