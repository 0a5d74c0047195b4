"""Whole-state checkpoints that a kill at any instruction leaves whole or absent, in one of several formats.

``step-00000008.pt`` is one file (:mod:`.file`), ``step-00000008.dcp`` a directory with files of each rank
(:mod:`.dcp`, and :mod:`.dcp_async` in the background), in a folder or on an object store
(:mod:`takeback.trainers.stores`). What each format must do: write so that an incomplete checkpoint can't be taken for a
complete one, and refuse on load what is not what was written. What is common to all is here: ``latest`` holds the name
of the newest complete one, and is written last; old ones are retired. A load takes the format from the name.

With ``damaged: fallback`` a load tells what it found damaged, and goes on from the newest checkpoint that is whole on
every rank: each verifies what it reads, and that can be whole on one and damaged on another.

Points for faults: ``save.begin`` on every rank, ``save.write`` (in the middle of the bytes) and ``save.written``
(they are on disk) on each rank that writes; on rank 0 ``save.commit`` (the checkpoint is complete, and ``latest``
still names the one before), ``save.pointer`` (``latest`` names it), ``save.retire`` (an old one has been removed,
others have not). ``load`` on every rank, before the pointer is read.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from takeback import probe
from takeback.trainers import stores
from takeback.trainers.files import Clock
from takeback.trainers.settings import Settings
from takeback.trainers.state import State, forget, rounded
from takeback.trainers.stores import why
from takeback.trainers.strategies import Strategy

#: What is in ``run`` under "format": a checkpoint that says more is of a newer trainer.
VERSION = 1
POINTER = "latest"
MANIFEST = "manifest.json"  # what makes a directory complete
_NAME = re.compile(r"step-(\d+)\.(pt|dcp)")
_MODULES = {"pt": "file", "dcp": "dcp"}


class CheckpointError(RuntimeError):
    """A checkpoint that can't be read or written: one line with the file and what is wrong."""


class OtherRunError(CheckpointError):
    """A checkpoint that is whole and of no use here: no older one is a fallback from it."""


class Format(ABC):
    """How the checkpoint of one step is written and read."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints, self.cfg, self.store = checkpoints, checkpoints.cfg, checkpoints.store

    @abstractmethod
    def save(self, step: int, state: State, group: dist.ProcessGroup) -> None:
        """Write the checkpoint of ``step``; a collective of ``group``.

        Raises:
            CheckpointError: on every rank, where any could not write it. What was there before stays.
        """

    def wait(self) -> None:  # noqa: B027 (nothing is what most formats have to do)
        """Return when what was begun is complete: at once, but for a format that writes in the background.

        Raises:
            CheckpointError: on every rank, if it could not be written.
        """

    @abstractmethod
    def load(self, name: str, state: State) -> tuple[dict[str, Any], bool]:
        """What was saved: the snapshot, and whether its tensors are whole or this rank's parts.

        No collective: each rank reads for itself. ``state`` stays what it is; it says which parts this rank holds.

        Raises:
            OtherRunError: it is of another run, by :meth:`Checkpoints.check_run`.
            CheckpointError: it is not there, or not what was written.
        """


class Checkpoints:
    """The checkpoints of one run.

    Args:
        cfg: ``checkpoints`` (folder, made if it is not there, or URL), ``format``, ``keep`` (how many; the one that was
            restored from and the one that ``latest`` names are kept besides), ``write``, ``verify``, ``damaged``.
        run: what a checkpoint must have been made with to be of use here, by name.
    """

    def __init__(self, cfg: Settings, run: dict[str, Any]) -> None:
        self.cfg, self.run = cfg, {**run, "format": VERSION}
        self.store = stores.get(cfg.checkpoints, cfg.write)
        self.in_use: str | None = None
        self.saves = 0
        self.format = self._module(cfg.format.replace("-", "_"))

    def _module(self, name: str) -> Format:
        return importlib.import_module(f"takeback.trainers.checkpoints.{name}").Format(self)

    def save(self, state: State, group: dist.ProcessGroup) -> None:
        """Write the state as it is now; when it is complete, ``saved`` is told.

        Raises:
            CheckpointError: on every rank, where any could not write it, or the one before in the background.
        """
        if probe.active():
            probe.digest("saved", state.step, state.collect())
        if self.saves == 0 and dist.get_rank() == 0:
            self._forsake(state.step)
        self.saves += 1
        self.format.save(state.step, state, group)

    def _forsake(self, step: int) -> None:
        """Remove what a life before this one completed and was killed before it was named: steps that never were.

        Left there until another save is killed so, it would look as if ``latest`` had been set back by two saves. One
        of this ``step`` is about to be replaced.
        """
        with suppress(CheckpointError, OSError):  # what can't be read or removed is no reason not to save
            complete = self._complete()
            known = max(self._named(complete) or "", self.in_use or "")
            for name in complete if known else ():  # without a pointer the one that is there may be all there is
                if name > known and int(_NAME.fullmatch(name)[1]) != step:
                    self.remove(name)

    def wait(self) -> None:
        """See :meth:`Format.wait`."""
        self.format.wait()

    def restore(self, state: State, share: Strategy, stale: bool = False) -> None:
        """Put the newest complete checkpoint in place, if there is one; if ``stale``, the one before it.

        Raises:
            CheckpointError: it is missing, torn, altered or of another run; or, with ``damaged: fallback``, all are.
        """
        found = self._agreed(state, stale, share.group)
        if found is not None:
            saved, whole = found
            parts = forget(self.cfg.forget, rounded(self.cfg.rounded, saved))
            if parts is not None:
                state.restore(parts, dist.get_rank(share.data), whole)

    def _agreed(self, state: State, stale: bool, group: dist.ProcessGroup) -> tuple[dict[str, Any], bool] | None:
        """The newest that is whole; with a fallback a collective: on every rank of ``group``."""
        probe.point("load")
        damaged: dict[str, str] = {}
        if self.cfg.damaged == "refuse":
            return self.newest(state, stale, damaged)
        newest = None
        while True:
            found = problem = None
            try:
                found = self.newest(state, stale, damaged, newest)
            except CheckpointError as error:
                problem = error
            ranks: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(ranks, (self.in_use if found else "", damaged), group=group)
            if problem:
                raise problem
            names = {name for name, _ in ranks}
            if len(names) == 1 or "" in names:
                return found
            newest = min(names)
            for rank, (_, told) in enumerate(ranks):
                for name in sorted(told.keys() - damaged.keys()):
                    self._tell(name, CheckpointError(f"rank {rank}: {told[name]}"), damaged)

    def newest(
        self,
        state: State | None,
        stale: bool = False,
        damaged: dict[str, str] | None = None,
        newest: str | None = None,
    ) -> tuple[dict[str, Any], bool] | None:
        """What the newest holds that is whole here, and not newer than ``newest``; None where nothing has been saved.

        Raises:
            CheckpointError: see :meth:`restore`. What is damaged is added to ``damaged`` instead where one may go on.
        """
        damaged = {} if damaged is None else damaged
        try:
            there = sorted(self._complete(), reverse=True)
        except OSError as error:
            raise CheckpointError(f"{self.cfg.checkpoints}: can't be read: {why(error)}") from None
        try:
            name = self._named(there)
            if name is None:
                return None
            if stale:
                name = next((other for other in there if other < name), name)
            candidates = [name, *(other for other in there if other != name)]
        except CheckpointError as error:
            self._tell(POINTER, error, damaged)
            candidates = there
        for name in candidates:
            if newest is not None and name > newest:
                continue
            _, step, suffix = _NAME.fullmatch(name).group(0, 1, 2)
            try:
                saved, whole = self._module(_MODULES[suffix]).load(name, state)
                if self.cfg.verify == "checksum" and saved["step"] != int(step):
                    place = self.store.place(name)
                    raise CheckpointError(f"{place}: is damaged: it is that of step {saved['step']}")
            except OtherRunError:
                raise
            except CheckpointError as error:
                self._tell(name, error, damaged)
            else:
                self.in_use = name
                return saved, whole
        raise CheckpointError(f"no checkpoint is whole: {'; '.join(damaged.values())}")

    def _complete(self) -> list[str]:
        """Names of those that could be complete: a directory without its manifest is not.

        Raises:
            OSError: that can't be known.
        """
        found = [name for name in self.store.names() if _NAME.fullmatch(name)]
        return [name for name in found if not name.endswith(".dcp") or self.store.has(f"{name}/{MANIFEST}")]

    def _named(self, there: list[str]) -> str | None:
        """The name in ``latest``; None where nothing has been saved yet.

        Raises:
            CheckpointError: it can't be what the last save wrote.
        """
        pointer = self.store.place(POINTER)
        try:
            with self.store.open(POINTER) as file:
                name = file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            name = ""
        except OSError as error:
            raise CheckpointError(f"{pointer}: can't be read: {why(error)}") from None
        # A save that was killed before its pointer leaves one file that is newer, and never two.
        newer = [file for file in there if file > name]
        if not name and len(newer) < 2 and POINTER not in self.store.names():
            return None
        if name and not _NAME.fullmatch(name):
            raise CheckpointError(f"{pointer}: is damaged: {name!r} is no name of a checkpoint")
        if not name or len(newer) > 1:
            what = f"names {name}" if name else "names nothing"
            raise CheckpointError(f"{pointer}: is damaged: it {what}, and {len(newer)} newer checkpoints are there")
        return name

    def _tell(self, name: str, error: CheckpointError, damaged: dict[str, str]) -> None:
        """Tell what is damaged, and go on where one may."""
        if self.cfg.damaged == "refuse":
            raise error
        if name in damaged:
            return
        found = _NAME.fullmatch(name)
        probe.record("damaged", step=int(found[1]) if found else None, file=name, reason=str(error))
        damaged[name] = str(error)

    def check_run(self, name: str, run: dict[str, Any]) -> None:
        """Raise :class:`OtherRunError` unless ``run``, read from ``name``, is what this run is made with."""
        place = self.store.place(name)
        if run.get("format", 0) > VERSION:
            newer = f"format {run['format']}; this trainer reads {VERSION}"
            raise OtherRunError(f"{place}: is of a newer trainer: {newer}")
        for key, here in self.run.items():
            if run.get(key) != here:
                raise OtherRunError(f"{place}: is of another run: {key} is {run.get(key)} there, {here} here")

    def commit(self, name: str, step: int) -> dict[str, float]:
        """``name`` is complete: have ``latest`` name it, and retire old ones; on rank 0 alone. Returns seconds.

        Raises:
            OSError: the pointer could not be written, or an old one not be removed.
        """
        probe.point("save.commit", step)
        clock = Clock()
        with self.store.create(POINTER, clock) as file:
            file.write(f"{name}\n".encode())
        probe.record("committed", step=step)
        probe.point("save.pointer", step)
        complete = self._complete()
        old = [one for one in sorted(complete)[: -self.cfg.keep] if one not in (name, self.in_use)]
        for other in [*old, *self._left_behind(name, complete)]:
            self.remove(other)
            probe.point("save.retire", step)
        return clock.took

    def _left_behind(self, newest: str, complete: list[str]) -> list[str]:
        """What killed saves left, and nothing of a stranger's."""
        there = sorted(self.store.names() - {*complete, self.in_use})
        ours = [name for name in there if name == f"{POINTER}.tmp" or _NAME.fullmatch(name.removesuffix(".tmp"))]
        return [name for name in ours if name.endswith(".tmp") or (name.endswith(".dcp") and name < newest)]

    def remove(self, name: str) -> None:
        """Remove a checkpoint, complete or not: of a directory first what makes it complete."""
        if name.endswith(".dcp"):
            self.store.remove(f"{name}/{MANIFEST}")
        self.store.remove(name)
