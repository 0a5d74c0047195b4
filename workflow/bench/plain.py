"""What people do today: each run a torchrun of the same training script, one after the other, killed by hand.

The script is the same, outside the suite: its probe is a no-op. Rank 0 prints a line a step; when the step of the
kill is there, the last rank gets a SIGKILL. The resumed run is the same command once more, on a copy of the folder.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import meter
import psutil
from takeback.leg import Leg
from takeback.matrix import Cell


def sample(cells: Sequence[Cell], each: int, choose: random.Random) -> list[Cell]:
    """``each`` cells of every world of the killed run, drawn without putting back."""
    found = []
    for world in sorted({cell.axes["world"] for cell in cells}):
        stratum = [cell for cell in cells if cell.axes["world"] == world]
        found += choose.sample(stratum, min(each, len(stratum)))
    return found


def run_cell(cell: Cell, folder: Path) -> Iterator[dict[str, Any]]:
    """The three runs of a cell: one sample each, with its role, world, cost, and whether the kill struck."""
    for role, leg in runs_of(cell).items():
        if role == "resumed":
            shutil.copytree(folder / "killed", folder / "resumed")
        cost = torchrun(leg, folder / role)
        if role != "killed" and cost.status:
            raise RuntimeError(f"torchrun of the {role} run of {cell.id} ended with status {cost.status}")
        yield {"role": role, "cell": cell.id, "world": leg.world, "wall": cost.wall, "cpu": cost.cpu,
               "struck": bool(cost.status)}  # fmt: skip


def runs_of(cell: Cell) -> dict[str, Leg]:
    """What a plain loop runs for a cell: nobody repeats the reference."""
    return {"reference": cell.reference, "killed": cell.killed, "resumed": cell.resumed}


def torchrun(leg: Leg, checkpoints: Path) -> meter.Cost:
    """One run of the training script, killed at the step of the leg's fault if it has one."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={leg.world}"]
    fill = {"checkpoints": str(checkpoints), "backend": leg.backend}
    words += [word.format(**fill) for word in leg.trainer["command"][1:]]
    words += [part for name, value in leg.trainer["settings"].items() for part in (f"--{name}", str(value))]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TAKEBACK_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = meter.Metered(words, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    due = f"step {leg.faults[0]['step']} " if leg.faults else None
    for line in command.command.stdout:
        if due and line.startswith(due):
            kill_rank(command.command.pid, leg.world - 1)
    command.command.stdout.close()
    return command.cost()


def kill_rank(agent: int, rank: int) -> None:
    """SIGKILL the worker of a torchrun that has this rank, if it is still there."""
    for worker in psutil.Process(agent).children():
        try:
            if worker.environ().get("RANK") == str(rank):
                worker.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended by itself
            continue


def nothing_shared(samples: Iterable[dict[str, Any]], cells: Sequence[Cell], what: str) -> float:
    """Seconds a cell of the plain loop over all ``cells``, from a sample of those of each world of the kill."""
    each: dict[str, float] = Counter()
    for run in samples:
        each[run["cell"]] += run[what]
    world_of = {cell.id: cell.axes["world"] for cell in cells}
    total = 0.0
    for world, count in Counter(world_of.values()).items():
        total += count * statistics.mean(seconds for cell, seconds in each.items() if world_of[cell] == world)
    return total / len(cells)


def shared(samples: Sequence[dict[str, Any]], cells: Sequence[Cell], what: str) -> float:
    """Seconds a cell of the loop in which each distinct run is made once: the same torchruns, fewer of them."""
    distinct = {leg.id: role for cell in cells for role, leg in runs_of(cell).items()}
    total = 0.0
    for role, count in Counter(distinct.values()).items():
        total += count * statistics.mean(run[what] for run in samples if run["role"] == role)
    return total / len(cells)
