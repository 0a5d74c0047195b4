"""Ways to save: ``xm.save`` of one file, distributed checkpoints with the planners of SPMD, the bridge's manager.

Each is a class with

``newest()``
    The step of the newest complete checkpoint, or None.
``load(step, into)``
    What was saved; distributed checkpoints put it in place, into the tensors of ``into``.
``save(step, state)``
    Write a state; returns the step if it is complete by now. Raises SaveError on every rank where one could not.
``settle()``
    Wait for what is written in the background; returns the step that is complete since, or raises SaveError.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_xla.core.xla_model as xm
import torch_xla.experimental.distributed_checkpoint as planners

from takeback.trainers import files


class SaveError(RuntimeError):
    """A checkpoint was not written: one line."""


class File:
    """One file by ``xm.save``: temporary name, fsync, rename, fsync of the folder; all ranks wait until it is there."""

    def __init__(self, folder: Path, **_: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> int | None:
        found = (re.fullmatch(r"step-(\d+)\.pt", path.name) for path in self.folder.iterdir())
        return max((int(name[1]) for name in found if name), default=None)

    def load(self, step: int, into: dict[str, Any]) -> dict[str, Any]:
        return torch.load(self.folder / f"step-{step}.pt", weights_only=True)

    def save(self, step: int, state: dict[str, Any]) -> int:
        problem: list[str | None] = [None]
        if dist.get_rank() == 0:
            path = self.folder / f"step-{step}.pt"
            try:
                with files.create(path, "whole") as file:
                    xm.save(state, file)
            except OSError as error:
                problem = [f"{path}: {error.strerror}"]
        dist.broadcast_object_list(problem)  # all wait until it is there, or know why it is not
        if problem[0]:
            raise SaveError(problem[0])
        return step

    def settle(self) -> int | None:
        return None


class Sharded:
    """A distributed checkpoint with the planners of SPMD, of a state that each device has whole.

    Without ``.metadata``, which is written last, it is none.
    """

    def __init__(self, folder: Path, **_: Any) -> None:
        self.folder = folder

    def newest(self) -> int | None:
        complete = (path.parent.name for path in self.folder.glob("*/.metadata"))
        return max(map(int, complete), default=None)

    def load(self, step: int, into: dict[str, Any]) -> dict[str, Any]:
        dcp.load(into, storage_reader=dcp.FileSystemReader(self.folder / str(step)), planner=planners.SPMDLoadPlanner())
        return into

    def save(self, step: int, state: dict[str, Any]) -> int:
        writer = dcp.FileSystemWriter(self.folder / str(step), sync_files=True)
        dcp.save(state, storage_writer=writer, planner=planners.SPMDSavePlanner())
        return step

    def settle(self) -> int | None:
        return None


class Manager:
    """``CheckpointManager``, which syncs before it saves: by that the generator of the device moves on.

    Args:
        folder: for its checkpoints.
        guard: ``rng``: it is put back where it was; ``none``: as documented.
        staging: ``clone``: tensors on the CPU are copied for a save in the background, which does not do it;
            ``reference``: as documented, and written after the next step, which otherwise is likely and no more.
        background: save by ``save_async``.
    """

    def __init__(self, folder: Path, guard: str, staging: str, background: bool = False) -> None:
        self.folder, self.guard, self.staging, self.background = folder, guard, staging, background
        # On preemption it would ask the network for a coordinator, which there is on TPU alone.
        self.manager = planners.CheckpointManager(str(folder), save_interval=1, chkpt_on_preemption=False)
        self.pending: int | None = None

    def newest(self) -> int | None:
        return max(self.manager.all_steps(), default=None)

    def load(self, step: int, into: dict[str, Any]) -> dict[str, Any]:
        self.manager.restore(step, into)
        return into

    def save(self, step: int, state: dict[str, Any]) -> int | None:
        before = xm.get_rng_state()
        if self.background:
            if self.staging == "reference":
                self.manager._save_mutex.acquire()
            self.manager.save_async(step, cloned(state) if self.staging == "clone" else state)
            self.pending = step
        else:
            self.manager.save(step, state)
        if self.guard == "rng":
            xm.set_rng_state(before)
        return None if self.background else step

    def settle(self) -> int | None:
        if self.pending is None:
            return None
        step, self.pending = self.pending, None
        if self.staging == "reference":
            self.manager._save_mutex.release()
        self.manager.join()
        if step not in complete(self.folder):  # join() tells of no failure
            raise SaveError(f"checkpoint of step {step} was not written, and CheckpointManager.join() did not say so")
        return step


def complete(folder: Path | str) -> list[int]:
    """Steps whose mark is in the folder: a new manager reads it; one that saves has them in its list before."""
    return planners.CheckpointManager(
        str(folder), save_interval=1, process_group=dist.group.WORLD, chkpt_on_preemption=False
    ).all_steps()


def cloned(state: Any) -> Any:
    """The same with tensors on the CPU copied."""
    if isinstance(state, dict):
        return {name: cloned(value) for name, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) and state.device.type == "cpu" else state


WAYS = {"xm": File, "dcp": Sharded, "manager": Manager, "manager-async": Manager}


def of(way: str, folder: Path, guard: str, staging: str) -> File | Sharded | Manager:
    """The way to save called ``way``, one of :data:`WAYS`."""
    more = {"background": True} if way == "manager-async" else {}
    return WAYS[way](folder, guard=guard, staging=staging, **more)
