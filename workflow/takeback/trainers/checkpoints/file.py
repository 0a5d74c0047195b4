"""One file: what ``torch.save`` writes, followed by a line with its checksum, which ``torch.load`` passes over.

In a folder a save is: temporary file, flush, fsync, rename, fsync of the folder (:mod:`takeback.trainers.files`); on an
object store all parts of an upload, and its completion. Last comes the pointer, in the same way. Rank 0 writes; sharded
parameters are gathered there, so that it must have room for all.
"""

from __future__ import annotations

import io
import os
import time
from functools import partial
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from takeback import probe
from takeback.trainers import checkpoints
from takeback.trainers.checkpoints import CheckpointError
from takeback.trainers.checkpoints.hashed import DIGITS, Hashed, digest, writing
from takeback.trainers.files import Clock
from takeback.trainers.state import State
from takeback.trainers.stores import Store, why
from takeback.trainers.strategies.whole import mapped
from takeback.trainers.topology import all_agree

_LABEL = b"\nxxh3_128 "
_TRAILER = len(_LABEL) + DIGITS + 1


class Format(checkpoints.Format):
    """See the module."""

    def save(self, step: int, state: State, group: dist.ProcessGroup) -> None:
        snapshot = state.snapshot(group)
        probe.point("save.begin", step)
        dist.barrier(group)
        problem = None
        if dist.get_rank(group) == 0:
            try:
                self.write(step, snapshot)
            except OSError as error:
                problem = f"{self.cfg.checkpoints}: checkpoint of step {step} not written: {why(error)}"
        if not all_agree(problem is None, group):
            raise CheckpointError(problem or f"rank 0 could not write the checkpoint of step {step}")
        probe.saved(step)

    def write(self, step: int, snapshot: dict[str, Any]) -> None:
        """Write the checkpoint of ``step``, on this rank and alone: nobody else knows when it is complete."""
        name, clock = f"step-{step:08d}.pt", Clock()
        with self.store.create(name, clock, partial(probe.point, "save.written", step)) as file:
            hashed = Hashed(file, _bytes_of(snapshot) // 2, partial(self._halfway, step))
            with writing():
                torch.save({"run": self.checkpoints.run, "state": snapshot}, hashed)
            file.write(_LABEL + hashed.hexdigest().encode() + b"\n")
        of_pointer = self.checkpoints.commit(name, step)
        took = {"file": clock.took, "pointer": of_pointer}
        probe.record("note", step=step, text=f"written {self.cfg.write}", seconds=took)

    def _halfway(self, step: int) -> None:
        probe.point("save.write", step)
        time.sleep(self.cfg.slow)

    def load(self, name: str, state: State) -> tuple[dict[str, Any], bool]:
        saved = read(self.store, name, self.cfg.verify)
        self.checkpoints.check_run(name, saved["run"])
        parts = saved["state"]
        if "optimizer" in parts:  # which keeps what it loads: none of that must be the file, which may be mapped
            parts["optimizer"] = mapped(parts["optimizer"], torch.Tensor.clone)
        return parts, True


def read(store: Store, name: str, verify: str = "checksum") -> dict[str, Any]:
    """``{"run": …, "state": …}`` of one file, its checksum verified.

    Raises:
        CheckpointError: it is not there, or not what was written.
    """
    place = store.place(name)
    try:
        with store.open(name) as file:
            if verify == "checksum":
                _verify(file, place)
            return _load(file)
    except OSError as error:
        raise CheckpointError(f"{place}: can't be read: {why(error)}") from None


def _verify(file: BinaryIO, place: str) -> None:
    """Before anything of it is believed; leaves the file at its start.

    Raises:
        CheckpointError: it is not what was written.
    """
    length = file.seek(0, os.SEEK_END) - _TRAILER
    if length == -_TRAILER:
        raise CheckpointError(f"{place}: is empty")
    file.seek(max(0, length))
    if not (trailer := file.read()).startswith(_LABEL):
        raise CheckpointError(f"{place}: is torn, or no checkpoint of this trainer: the checksum at its end is missing")
    file.seek(0)
    if digest(file, length).encode() != trailer[len(_LABEL) :].strip():
        raise CheckpointError(f"{place}: is damaged: its content does not have its checksum")


def _load(file: BinaryIO) -> dict[str, Any]:
    """A file of a folder is mapped, and not read again: each tensor is copied once, to where it belongs."""
    maps = not isinstance(file, io.BytesIO)
    there = f"/dev/fd/{file.fileno()}" if maps else file  # the one that was verified, whatever has its name by now
    return torch.load(there, map_location="cpu", weights_only=True, mmap=maps)


def _bytes_of(snapshot: dict[str, Any]) -> int:
    """Bytes of all tensors."""
    return sum(value.nbytes for _, value in probe.flatten(snapshot) if isinstance(value, torch.Tensor))
