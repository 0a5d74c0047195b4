"""Whole-state checkpoints, one file each, that a kill at any instruction leaves whole or absent.

``step-00000008.pt`` is what ``torch.save`` writes, followed by a line with its SHA-256, which
``torch.load`` passes over; ``latest`` holds the name of the newest complete one. A save is:
temporary file, flush, fsync, rename, fsync of the folder (:mod:`takeback.trainers.files`), and last
the pointer, in the same way.

A load refuses what is not what was written; with ``damaged: fallback`` it tells what it found
damaged, and goes on from the newest checkpoint that is whole.

Points for faults: ``save.begin`` on every rank; on rank 0 ``save.write`` (half of the bytes are
written), ``save.written`` (the temporary file is on disk), ``save.commit`` (it has its name, and
``latest`` still names the one before), ``save.pointer`` (``latest`` names it), ``save.retire`` (an old
one has been removed, others have not). ``load`` on every rank, before the pointer is read.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from takeback import probe
from takeback.trainers import files
from takeback.trainers.settings import Settings
from takeback.trainers.topology import all_agree

_POINTER = "latest"
_NAME = re.compile(r"step-(\d+)\.pt")
_LABEL = b"\nsha256 "
_TRAILER = len(_LABEL) + 64 + 1


class CheckpointError(RuntimeError):
    """A checkpoint that can't be read or written: one line with the file and what is wrong."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        cfg: ``checkpoints`` (folder, made if it is not there), ``keep`` (how many; the one that was restored from
            and the one that ``latest`` names are kept besides), ``write``, ``verify``, ``damaged``.
        run: what a checkpoint must have been made with to be of use here, by name.
    """

    def __init__(self, cfg: Settings, run: dict[str, Any]) -> None:
        self.cfg, self.folder, self.run = cfg, Path(cfg.checkpoints), run
        self.in_use: str | None = None

    def load(self, stale: bool = False) -> dict[str, Any] | None:
        """The newest complete checkpoint, or None where there is none yet; if ``stale``, the one before it.

        Raises:
            CheckpointError: it is missing, torn, altered or of another run; or, with ``damaged: fallback``, all are.
        """
        probe.point("load")
        there = sorted((path.name for path in self.folder.glob("step-*.pt")), reverse=True)
        damaged: list[str] = []
        try:
            name = self._named(there)
            if name is None:
                return None
            if stale:
                name = next((other for other in there if other < name), name)
            candidates = [name, *(other for other in there if other != name)]
        except CheckpointError as error:
            self._tell(_POINTER, error, damaged)
            candidates = there
        for name in candidates:
            try:
                saved = read(self.folder / name, self.cfg.verify)
            except CheckpointError as error:
                self._tell(name, error, damaged)
            else:
                return self._of_this_run(name, saved)
        raise CheckpointError(f"no checkpoint is whole: {'; '.join(damaged)}")

    def _named(self, there: list[str]) -> str | None:
        """The name in ``latest``; None where nothing has been saved yet.

        Raises:
            CheckpointError: it can't be what the last save wrote.
        """
        pointer = self.folder / _POINTER
        try:
            name = pointer.read_bytes().decode(errors="replace").strip()
        except FileNotFoundError:
            name = ""
        except OSError as error:
            raise CheckpointError(f"{pointer}: can't be read: {error.strerror}") from None
        # A save that was killed before its pointer leaves one file that is newer, and never two.
        newer = [file for file in there if file > name]
        if not name and len(newer) < 2 and not pointer.exists():
            return None
        if name and not _NAME.fullmatch(name):
            raise CheckpointError(f"{pointer}: is damaged: {name!r} is no name of a checkpoint")
        if not name or len(newer) > 1:
            what = f"names {name}" if name else "names nothing"
            raise CheckpointError(f"{pointer}: is damaged: it {what}, and {len(newer)} newer checkpoints are there")
        return name

    def _tell(self, name: str, error: CheckpointError, damaged: list[str]) -> None:
        """Tell what is damaged, and go on where one may."""
        if self.cfg.damaged == "refuse":
            raise error
        found = _NAME.fullmatch(name)
        probe.record("damaged", step=int(found[1]) if found else None, file=name, reason=str(error))
        damaged.append(str(error))

    def _of_this_run(self, name: str, saved: dict[str, Any]) -> dict[str, Any]:
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
                self.write(step, snapshot)
            except OSError as error:
                problem = f"{self.folder}: checkpoint of step {step} not written: {error.strerror}"
        if not all_agree(problem is None, group):
            raise CheckpointError(problem or f"rank 0 could not write the checkpoint of step {step}")

    def write(self, step: int, snapshot: dict[str, Any]) -> None:
        """Write the checkpoint of ``step``, on this rank and alone: nobody else knows when it is complete."""
        buffer = io.BytesIO()
        torch.save({"run": self.run, "state": snapshot}, buffer)
        payload = buffer.getvalue()
        checksum = hashlib.sha256(payload).hexdigest().encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{step:08d}.pt"
        at = (partial(self._halfway, step), partial(probe.point, "save.written", step))
        took = files.write(self.folder / name, payload + _LABEL + checksum + b"\n", self.cfg.write, *at)
        probe.point("save.commit", step)
        of_pointer = files.write(self.folder / _POINTER, f"{name}\n".encode(), self.cfg.write)
        probe.record("committed", step=step)
        probe.record("note", step=step, text=f"written {self.cfg.write}", seconds={"file": took, "pointer": of_pointer})
        probe.point("save.pointer", step)
        self._retire(name, step)

    def _halfway(self, step: int) -> None:
        probe.point("save.write", step)
        time.sleep(self.cfg.slow)

    def _retire(self, newest: str, step: int) -> None:
        """Remove what is too old, and what a killed save left behind."""
        there = sorted(self.folder.glob("step-*.pt"))
        old = [path for path in there[: -self.cfg.keep] if path.name not in (newest, self.in_use)]
        for path in [*old, *self.folder.glob("*.tmp")]:
            path.unlink()
            probe.point("save.retire", step)


def read(path: Path, verify: str = "checksum") -> dict[str, Any]:
    """``{"run": …, "state": …}`` of one file, its checksum verified.

    Raises:
        CheckpointError: it is not there, or not what was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror}") from None
    payload, trailer = data[:-_TRAILER], data[-_TRAILER:]
    if verify == "nothing":
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not data:
        raise CheckpointError(f"{path}: is empty")
    if not trailer.startswith(_LABEL):
        raise CheckpointError(f"{path}: is torn, or no checkpoint of this trainer: the checksum at its end is missing")
    if hashlib.sha256(payload).hexdigest().encode() != trailer[len(_LABEL) :].strip():
        raise CheckpointError(f"{path}: is damaged: its content does not have its checksum")
    return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
