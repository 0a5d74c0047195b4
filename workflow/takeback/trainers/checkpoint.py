"""Whole-state checkpoints, one file each, that a kill at any instruction leaves whole or absent.

``step-00000008.pt`` is what ``torch.save`` writes, followed by a line with its SHA-256, which
``torch.load`` passes over; ``latest`` holds the name of the newest complete one. A save is:
temporary file, flush, fsync, rename, fsync of the folder (a rename alone protects a concurrent
reader, not a restart after the host died), and last the pointer, in the same way.

Points for faults: ``save.begin`` on every rank; on rank 0 ``save.write`` (half of the bytes are
written), ``save.written`` (the temporary file is on disk), ``save.commit`` (it has its name, and
``latest`` still names the one before), ``save.pointer`` (``latest`` names it), ``save.retire`` (an old
one has been removed, others have not). ``load`` on every rank, before the pointer is read.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from takeback import probe
from takeback.trainers.topology import all_agree

_POINTER = "latest"
_LABEL = b"\nsha256 "
_TRAILER = len(_LABEL) + 64 + 1


class CheckpointError(RuntimeError):
    """A checkpoint that can't be read or written: one line with the file and what is wrong."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: made if it is not there.
        keep: how many to keep; the one that was restored from and the one that ``latest``
            names are kept besides.
        run: what a checkpoint must have been made with to be of use here, by name.
    """

    def __init__(self, folder: str, keep: int, run: dict[str, Any]) -> None:
        self.folder, self.keep, self.run = Path(folder), keep, run
        self.in_use: str | None = None

    def load(self, stale: bool = False) -> dict[str, Any] | None:
        """The newest complete checkpoint, or None where there is none yet; if ``stale``, the one before it.

        Raises:
            CheckpointError: it is missing, torn, altered or of another run.
        """
        probe.point("load")
        try:
            name = (self.folder / _POINTER).read_text().strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{self.folder}: can't be read: {error.strerror}") from None
        if stale:
            name = max((path.name for path in self.folder.glob("step-*.pt") if path.name < name), default=name)
        saved = read(self.folder / name)
        for key, here in self.run.items():
            there = saved["run"].get(key)
            if there != here:
                raise CheckpointError(f"{self.folder / name}: is of another run: {key} is {there} there, {here} here")
        self.in_use = name
        return saved["state"]

    def save(self, step: int, snapshot: dict[str, Any], group: dist.ProcessGroup) -> None:
        """Write the checkpoint of ``step``; returns on all ranks when it is complete.

        Raises:
            CheckpointError: on every rank, when rank 0 could not write it. What was there before stays.
        """
        probe.point("save.begin", step)
        dist.barrier(group)
        problem = None
        if dist.get_rank(group) == 0:
            try:
                self._write(step, snapshot)
            except OSError as error:
                problem = f"{self.folder}: checkpoint of step {step} not written: {error.strerror}"
        if not all_agree(problem is None, group):
            raise CheckpointError(problem or f"rank 0 could not write the checkpoint of step {step}")

    def _write(self, step: int, snapshot: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save({"run": self.run, "state": snapshot}, buffer)
        payload = buffer.getvalue()
        checksum = hashlib.sha256(payload).hexdigest().encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{step:08d}.pt"
        replace(self.folder / name, payload + _LABEL + checksum + b"\n", step)
        probe.point("save.commit", step)
        replace(self.folder / _POINTER, f"{name}\n".encode())
        probe.record("committed", step=step)
        probe.point("save.pointer", step)
        self._retire(name, step)

    def _retire(self, newest: str, step: int) -> None:
        """Remove what is too old, and what a killed save left behind."""
        files = sorted(self.folder.glob("step-*.pt"))
        old = [path for path in files[: -self.keep] if path.name not in (newest, self.in_use)]
        for path in [*old, *self.folder.glob("*.tmp")]:
            path.unlink()
            probe.point("save.retire", step)


def read(path: Path) -> dict[str, Any]:
    """``{"run": …, "state": …}`` of one file, its checksum verified.

    Raises:
        CheckpointError: it is not there, or not what was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror}") from None
    payload, trailer = data[:-_TRAILER], data[-_TRAILER:]
    if not trailer.startswith(_LABEL):
        raise CheckpointError(f"{path}: is torn, or no checkpoint of this trainer: the checksum at its end is missing")
    if hashlib.sha256(payload).hexdigest().encode() != trailer[len(_LABEL) :].strip():
        raise CheckpointError(f"{path}: is damaged: its content does not have its checksum")
    return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)


def replace(path: Path, data: bytes, step: int | None = None) -> None:
    """Put ``data`` under ``path`` so that after a crash there is the old file or the new, and never a part.

    With a ``step``, faults may strike while it is being written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data[: len(data) // 2])
            if step is not None:
                file.flush()
                probe.point("save.write", step)
            file.write(data[len(data) // 2 :])
            file.flush()
            os.fsync(file.fileno())
        if step is not None:
            probe.point("save.written", step)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
