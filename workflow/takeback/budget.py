"""A time budget: which cells tell most, in which order, and how many of them there is time for.

Costs are core-seconds: what one core of an ordinary machine is busy with. They decide what is begun; that
the workflow ends in time doesn't rest on them, since runs look at the clock themselves (:mod:`takeback.clock`).
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from takeback import clock
from takeback.errors import TakebackError
from takeback.experiment import Experiment
from takeback.leg import Leg, processes_of
from takeback.matrix import Cell
from takeback.meaning import REFERENCE, usual_settings

WEIGHT = {"control": 4, "topology": 2}  # what is to be seen early; any other value counts 1
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
# Measured on two cores with the default experiment, in core-seconds.
RUN = 1.0  # a run from the warm pool, whatever it does
RANK = 0.3  # and each of its ranks
STEP = 0.02  # and each of their steps, by the reference trainer
AFRESH = 10.0  # the first rank of a repetition, which imports torch by itself
IDLE = 0.2  # a run that can't run here
FOREIGN = 12  # a trainer whose steps nobody here knows: its deadline divided by this, for each rank
JUDGE, CELL = 6.0, 0.08  # to end what runs, judge, write the page, one after the other; further for each cell
FIGURE = 4.0  # each figure, and the provenance: side by side
# In seconds.
LOADED = 2.0  # from the start of the command to the first line of the Snakefile
START = 5.0  # from there to the first run: Snakemake's graph, the warm pool
ENOUGH = 8  # runs that tell how fast this machine is
MARGIN = 2.0  # on all that comes after the runs: the end is promised, and others may come onto the machine
SLOWEST = 3.0  # slower than that it only seems, while a disk is read for the first time


class BudgetError(TakebackError):
    """A budget that is no time, or too little: says what can be given."""


@dataclass(frozen=True)
class Plan:
    """What there is time for.

    Attributes:
        experiments: by name, each with the cells that are to run.
        priority: leg id → the higher, the sooner.
        until: Unix time at which runs end, so that what they told can be judged in time.
    """

    experiments: dict[str, Experiment]
    priority: dict[str, int]
    until: float


def seconds(value: object) -> float:
    """``90``, ``"90s"``, ``"10m"`` or ``"1.5h"`` in seconds; raises BudgetError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
    if isinstance(value, bool) or not found or not float(found[1]):
        raise BudgetError(f"budget={value}: is no time; write it as 90s, 10m or 1h")
    return float(found[1]) * UNITS[found[2]]


def slowness(begun: float, loaded: float) -> float:
    """How many times slower than usual, 1 or more, Snakemake was from its start to the first line of the Snakefile."""
    return min(max((loaded - begun) / LOADED, 1.0), SLOWEST)


def plan(
    asked: Mapping[str, Experiment],
    end: float,
    now: float,
    slow: float,
    cores: int,
    runs: Path,
    can_run: Callable[[Leg], bool],
) -> Plan:
    """The cells that fit between the Unix times ``now`` and ``end``, verdicts and page included.

    Args:
        asked: the experiments that share the budget.
        slow: see :func:`slowness`.
        cores: of Snakemake.
        runs: folder of the legs. Those whose evidence is there cost nothing, and tell how fast this machine is.
        can_run: whether a leg can run here; where not it costs next to nothing, and tells nothing.

    Raises:
        BudgetError: there is no time for any run.
    """
    cores = min(cores, len(os.sched_getaffinity(0)))
    legs = {leg.id: leg for one in asked.values() for leg in one.legs.values()}
    work = {leg.id: work_of(leg) if can_run(leg) else IDLE for leg in legs.values()}
    cost = {leg: 0.0 if (runs / leg / "events.parquet").exists() else work[leg] for leg in legs}
    each_second = speed(work, runs) or cores / slow
    cells = [(name, cell) for name, one in asked.items() for cell in one.cells]
    telling = [things(name, cell) if all(map(can_run, cell.legs)) else {} for name, cell in cells]
    chosen, spent, paid = 0, 0.0, {}
    figures = {(name,) for name in asked}  # the heat maps
    for number in order([[leg.id for leg in cell.legs] for _, cell in cells], telling, cost):
        name, cell = cells[number]
        more = {leg.id: cost[leg.id] for leg in cell.legs if leg.id not in paid}
        drawn = figures | ({(name, cell.axes["backend"], cell.axes["world"])} if not cell.control else set())
        around = START + judging(chosen + 1, len(drawn), cores)
        if now + around * slow + (spent + sum(more.values())) / each_second <= end:
            paid.update(more)
            chosen, spent, figures = chosen + 1, spent + sum(more.values()), drawn
    tail = judging(chosen, len(figures), cores) * slow
    if not chosen:
        least = START * slow + tail
        raise BudgetError(
            f"budget: too little for any cell, since {least:.0f} s are kept for starting and judging; "
            f"give more, such as budget={3 * least:.0f}s"
        )
    return Plan(
        experiments={name: replace(one, cells=tuple(affordable(one, paid))) for name, one in asked.items()},
        priority={leg: len(paid) - number for number, leg in enumerate(paid)},
        until=end - tail,
    )


def affordable(experiment: Experiment, paid: Collection[str]) -> Iterator[Cell]:
    """The cells all of whose legs are paid, be it for other cells."""
    return (cell for cell in experiment.cells if all(leg.id in paid for leg in cell.legs))


def things(name: str, cell: Cell) -> dict[tuple, int]:
    """What a cell shows, and how much that counts: the values of its axes and how its world changes, or its control.

    Apart for each experiment and backend: a value seen on one backend has not been seen on another. A control shows
    nothing else: that a broken trainer is caught on two ranks does not say that a good one survives there.
    """
    shown = {"control": cell.control}
    if not cell.control:
        world, resume_world = cell.axes["world"], cell.axes["resume_world"]
        topology = "same" if world == resume_world else "more" if world < resume_world else "fewer"
        shown = {**cell.axes, "topology": topology}
    return {(name, cell.axes["backend"], axis, str(value)): WEIGHT.get(axis, 1) for axis, value in shown.items()}


def order(
    legs: Sequence[Sequence[str]], telling: Sequence[Mapping[tuple, int]], cost: Mapping[str, float]
) -> list[int]:
    """Numbers of the cells, the most telling first.

    First those that show a value which none before them has shown, then those that show a pair of values for the
    first time, then the rest. Within each, the most new per cost (the greedy algorithm for a weighted set cover:
    Chvátal 1979, https://doi.org/10.1287/moor.4.3.233), where a leg that an earlier cell has paid costs nothing.

    Args:
        legs: of each cell, the ids of its legs.
        telling: of each cell, what it shows, and how much that counts.
        cost: of each leg.
    """
    count = {thing: weight for shown in telling for thing, weight in shown.items()}
    single = [set(shown) for shown in telling]
    pair = [set(itertools.combinations(sorted(shown), 2)) for shown in telling]
    waiting, paid, found = set(range(len(legs))), set(), []

    def rank(number: int) -> tuple:
        price = sum(cost[leg] for leg in legs[number] if leg not in paid)
        new = sum(map(count.__getitem__, single[number])) or len(pair[number])
        return bool(single[number]), new / (price + 1e-9) if new else -price, -number

    while waiting:
        number = max(waiting, key=rank)
        waiting.remove(number)
        found.append(number)
        paid.update(legs[number])
        for sets in (single, pair):
            if seen := sets[number]:
                for other in waiting:
                    sets[other] -= seen
    return found


def work_of(leg: Leg) -> float:
    """Core-seconds that a leg will take, from its ranks and steps."""
    if leg.trainer["command"] != REFERENCE:
        return processes_of(leg.spec) * leg.deadline / FOREIGN
    steps = (usual_settings() | leg.trainer["settings"])["steps"]
    if leg.faults:
        steps = leg.faults[0]["step"]
    elif leg.parent:
        steps -= leg.parent.faults[0]["step"]
    return RUN + leg.world * (RANK + STEP * steps) + AFRESH * leg.repeat


def judging(cells: int, figures: int, cores: int) -> float:
    """Seconds to keep for what follows the runs: verdicts, then figures beside provenance, then page and check."""
    return MARGIN * (JUDGE + CELL * cells + FIGURE * (figures + 1) / min(cores, figures + 1))


def speed(work: Mapping[str, float], runs: Path) -> float | None:
    """Core-seconds of ``work`` done in a second, as the times of earlier runs' files tell; None if too few ran."""
    spans, done = [], 0.0
    for leg in work:
        try:  # the first file of a run and its last
            first, last = ((runs / leg / name).stat().st_mtime for name in ("leg.json", "events.parquet"))
        except FileNotFoundError:
            continue
        spans.append((first, last))
        done += work[leg]
    busy = covered(spans)
    return done / busy if len(spans) >= ENOUGH and busy else None


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def forget(runs: Path) -> None:
    """Remove the runs that a budget has left out or cut off: whoever finds their evidence takes them for done."""
    for mark in list(runs.glob(f"*/{clock.MARK}")):
        shutil.rmtree(mark.parent)
