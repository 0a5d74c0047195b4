"""Progress of a running workflow, read from the evidence that appears on disk."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from takeback import clock
from takeback.experiment import Experiment

EVERY = 5.0  # s between two looks
ENOUGH = 8  # runs that have ended before a time is told: the first ones say little


class Progress(threading.Thread):
    """Prints a line when runs have ended: runs and cells done of all, and about how long is left.

    A daemon thread of Snakemake's own process: it needs no clean-up, and ends with it.
    """

    def __init__(self, experiments: Mapping[str, Experiment], runs: Path) -> None:
        super().__init__(daemon=True, name="progress")
        self.experiments, self.runs = experiments, runs
        self.begun = time.monotonic()

    def run(self) -> None:
        at_start = self.done()
        seen = dict.fromkeys(self.experiments, 0)
        while True:
            time.sleep(EVERY)
            done = self.done()
            for name, experiment in self.experiments.items():
                legs = experiment.legs.keys()
                new = len(legs & done) - len(legs & at_start)
                if new > seen[name]:
                    seen[name] = new
                    print(self.line(experiment, done, new), file=sys.stderr, flush=True)

    def done(self) -> set[str]:
        """Ids of the legs whose evidence is whole, those apart that a budget has cut off."""
        found = {path.parent.name for path in self.runs.glob("*/events.parquet")}
        return found - {path.parent.name for path in self.runs.glob(f"*/{clock.MARK}")}

    def line(self, experiment: Experiment, done: set[str], new: int) -> str:
        legs = experiment.legs.keys()
        cells = sum(all(leg.id in done for leg in cell.legs) for cell in experiment.cells)
        waiting = len(legs) - len(legs & done)
        left = duration(waiting * (time.monotonic() - self.begun) / new)
        return (
            f"takeback: {experiment.name}: {len(legs) - waiting}/{len(legs)} runs, "
            f"{cells}/{len(experiment.cells)} cells done, "
            + (f"about {left} of runs left" if waiting else "verdicts and page next")
        )


def duration(seconds: float) -> str:
    """``45 s`` or ``2 min 05 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
