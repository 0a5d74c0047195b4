"""The checkpoint race: rank 0 saves, and all ranks load what it has saved, each on its own clock.

So do many programs, to go on from the best state or to hand weights to other ranks; the tutorial of
DistributedDataParallel (docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html, "Save and Load
Checkpoints") puts one barrier between the save and the load, and another before the file is removed.
Here each can be left out.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from takeback import probe
from takeback.trainers.checkpoints import CheckpointError, Checkpoints
from takeback.trainers.checkpoints.file import read
from takeback.trainers.settings import Settings
from takeback.trainers.state import State


def save_and_reload(cfg: Settings, state: State, checkpoints: Checkpoints, group: dist.ProcessGroup) -> None:
    """Save on rank 0, load on every rank what is then the newest checkpoint, and go on from it.

    Raises:
        CheckpointError: on the rank that finds no file any more, or half of one.
    """
    rank, snapshot = dist.get_rank(group), state.snapshot(group)
    if rank == 0:
        checkpoints.format.write(state.step, snapshot)
    if cfg.reload in ("after", "both"):
        dist.barrier(group)
    if rank != 0:
        time.sleep(cfg.slow / 2)  # its own clock: it comes when rank 0 is half-way, or has gone on
    path = checkpoints.folder / newest(checkpoints.folder, cfg.find)
    state.restore(read(path)["state"], rank)
    probe.record("reloaded", step=state.step)
    if cfg.reload == "both":
        dist.barrier(group)
    if rank == 0 and cfg.prune == "yes":
        path.unlink()
    probe.saved(state.step, state=state.collect() if probe.active() else None)


def newest(folder: Path, how: str) -> str:
    """Name of the newest checkpoint: by the pointer, which is written last, or by the names of the files."""
    if how == "pointer":
        return (folder / "latest").read_text().strip()
    names = [path.name for path in folder.glob("step-*.pt")]
    if not names:
        raise CheckpointError(f"{folder}: there is no checkpoint")
    return max(names)
