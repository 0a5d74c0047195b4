"""The checkpoint race: rank 0 saves, and all ranks load what it has saved, each on its own clock.

So do many programs, to go on from the best state or to hand weights to other ranks; the tutorial of
DistributedDataParallel (docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html, "Save and Load
Checkpoints") puts one barrier between the save and the load, and another before the file is removed.
Here each can be left out.
"""

from __future__ import annotations

import time

import torch.distributed as dist

from takeback import probe
from takeback.trainers.checkpoints import POINTER, CheckpointError, Checkpoints
from takeback.trainers.checkpoints.file import read
from takeback.trainers.settings import Settings
from takeback.trainers.state import State
from takeback.trainers.stores import Store

LATEST = 60.0  # s after which a rank comes anyway


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
        come_late(cfg, state.step, checkpoints.store)
    name = newest(checkpoints.store, cfg.find)
    state.restore(read(checkpoints.store, name)["state"], rank)
    probe.record("reloaded", step=state.step)
    if cfg.reload == "both":
        dist.barrier(group)
    if rank == 0 and cfg.prune == "yes":
        checkpoints.remove(name)
    probe.saved(state.step, state=state.collect() if probe.active() else None)


def come_late(cfg: Settings, step: int, store: Store) -> None:
    """Come when rank 0 is in the middle of its save, or has loaded and gone on.

    Without a fence nothing orders the two but the files that are there: by its clock alone this rank might come before.
    An object store shows none before it is whole: there it comes after the save.
    """
    file, until = f"step-{step:08d}.pt", time.monotonic() + LATEST
    while time.monotonic() < until:
        if cfg.reload == "unfenced":
            here = any(name.startswith(file) for name in store.names())  # under its name or a temporary one
        else:
            here = cfg.reload == "both" or cfg.prune == "no" or not store.has(file)
        if here:
            break
        time.sleep(0.01)
    time.sleep(cfg.slow / 2)


def newest(store: Store, how: str) -> str:
    """Name of the newest checkpoint: by the pointer, which is written last, or by the names of the files."""
    if how == "pointer":
        with store.open(POINTER) as file:
            return file.read().decode().strip()
    names = [name for name in store.names() if name.endswith(".pt")]
    if not names:
        raise CheckpointError(f"{store.place('step-*.pt')}: there is no checkpoint")
    return max(names)
