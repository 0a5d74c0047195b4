"""One file: what ``torch.save`` writes, followed by a line with its SHA-256, which ``torch.load`` passes over.

A save is: temporary file, flush, fsync, rename, fsync of the folder (:mod:`takeback.trainers.files`), and last
the pointer, in the same way. Rank 0 writes; sharded parameters are gathered there, so that it must have room for all.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from takeback import probe
from takeback.trainers import checkpoints, files
from takeback.trainers.checkpoints import CheckpointError
from takeback.trainers.state import State
from takeback.trainers.topology import all_agree

_LABEL = b"\nsha256 "
_TRAILER = len(_LABEL) + 64 + 1
_PIECE = 1 << 18  # bytes


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
                problem = f"{self.folder}: checkpoint of step {step} not written: {error.strerror}"
        if not all_agree(problem is None, group):
            raise CheckpointError(problem or f"rank 0 could not write the checkpoint of step {step}")
        probe.saved(step)

    def write(self, step: int, snapshot: dict[str, Any]) -> None:
        """Write the checkpoint of ``step``, on this rank and alone: nobody else knows when it is complete."""
        buffer = Hashed()
        torch.save({"run": self.checkpoints.run, "state": snapshot}, buffer)
        buffer.write(_LABEL + buffer.sha256.hexdigest().encode() + b"\n")
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{step:08d}.pt"
        at = (partial(self._halfway, step), partial(probe.point, "save.written", step))
        took = files.write(self.folder / name, buffer.getbuffer(), self.cfg.write, *at)
        of_pointer = self.checkpoints.commit(name, step)
        probe.record("note", step=step, text=f"written {self.cfg.write}", seconds={"file": took, "pointer": of_pointer})

    def _halfway(self, step: int) -> None:
        probe.point("save.write", step)
        time.sleep(self.cfg.slow)

    def load(self, path: Path, state: State) -> tuple[dict[str, Any], bool]:
        saved = read(path, self.cfg.verify)
        self.checkpoints.check_run(path, saved["run"])
        return saved["state"], True


class Hashed(io.BytesIO):
    """A buffer with the SHA-256 of what is written to it: hashed as it comes, nothing need be copied again for that."""

    def __init__(self) -> None:
        super().__init__()
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        self.sha256.update(data)
        return super().write(data)


def read(path: Path, verify: str = "checksum") -> dict[str, Any]:
    """``{"run": …, "state": …}`` of one file, its checksum verified.

    Raises:
        CheckpointError: it is not there, or not what was written.
    """
    try:
        with open(path, "rb") as file:
            if verify == "checksum":
                _check(path, file)
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror}") from None


def _check(path: Path, file: BinaryIO) -> None:
    """Verify the checksum, in pieces, and go back to the start: for a large state that takes half of what it takes to
    hold all of the file in memory first.
    """
    left = os.fstat(file.fileno()).st_size - _TRAILER
    if left == -_TRAILER:
        raise CheckpointError(f"{path}: is empty")
    file.seek(max(0, left))
    if not (trailer := file.read()).startswith(_LABEL):
        raise CheckpointError(f"{path}: is torn, or no checkpoint of this trainer: the checksum at its end is missing")
    file.seek(0)
    sha256 = hashlib.sha256()
    while piece := file.read(min(left, _PIECE)):
        sha256.update(piece)
        left -= len(piece)
    if sha256.hexdigest().encode() != trailer[len(_LABEL) :].strip():
        raise CheckpointError(f"{path}: is damaged: its content does not have its checksum")
    file.seek(0)
