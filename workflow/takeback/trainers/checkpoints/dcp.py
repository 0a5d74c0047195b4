"""A directory that all ranks write (torch.distributed.checkpoint): each its parts, at least one file a rank.

DCP itself doesn't say when a directory is complete: its ``.metadata`` is there before all is on disk, and knows no
content. Here ``manifest.json``, written last and whole, lists each file with its size and checksum: a directory without
it was never completed, one whose files are not those of the list was altered. Each rank verifies the files that it
reads from, when it reads them. The manifest has a checksum of its own.

Values that every rank has (counters, keyed random streams) are saved by one of them; ``rng`` of ``rng: stream`` lists
the streams of all ranks under keys of their own. One key for all would keep one rank's and drop the others', without
a word: DCP takes values of the same key for replicas (``dedup_save_plans``), and spreads what it keeps over the ranks,
so that on three ranks torch's and numpy's stream were those of rank 0 and python's was that of rank 1 (torch 2.13).
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import WriteItem

from takeback import probe
from takeback.trainers import checkpoints
from takeback.trainers.checkpoints import MANIFEST, CheckpointError
from takeback.trainers.checkpoints.hashed import Hashed, hashing, writing
from takeback.trainers.files import Clock
from takeback.trainers.state import State
from takeback.trainers.stores import Store, why
from takeback.trainers.strategies import like, local
from takeback.trainers.strategies.whole import mapped

_METADATA = ".metadata"


class Format(checkpoints.Format):
    """See the module."""

    def save(self, step: int, state: State, group: dist.ProcessGroup) -> None:
        probe.point("save.begin", step)
        parts = state.snapshot(group, whole=False)
        name, writer, files = self.prepare(step, group)
        with one_line(self.store.place(name)):
            dcp.save(parts, storage_writer=writer, planner=Planner(step, self.cfg.slow), process_group=group)
        self.complete(name, step, files, group)

    def prepare(self, step: int, group: dist.ProcessGroup) -> tuple[str, Any, Files]:
        """A name with nothing below it, whatever a killed save has left there, when this returns on any rank; and
        DCP's writer, with the files that it writes.
        """
        name = f"step-{step:08d}.dcp"
        self._together(group, name, lambda: self.checkpoints.remove(name) if dist.get_rank(group) == 0 else None)
        writer = self.store.writer(name)
        writer.fs = files = Files(self.store, name, writer.fs)
        return name, writer, files

    def complete(self, name: str, step: int, files: Files, group: dist.ProcessGroup) -> None:
        """All parts are written: bring them to the disk, list them, and only then say so."""
        probe.point("save.written", step)
        clock = Clock()
        rows = self._together(group, name, files.settled)
        clock("seal")
        listed = {file: row for part in rows for file, row in part.items()}
        manifest = {"run": self.checkpoints.run, "step": step, "files": listed}
        manifest = json.dumps({**manifest, "sha256": _checksum(manifest)}, indent=1).encode()
        self._together(group, name, lambda: self._commit(name, step, manifest) if dist.get_rank(group) == 0 else None)
        clock("commit")
        probe.record("note", step=step, text=f"written {self.cfg.write}", seconds=clock.took)
        probe.saved(step)

    def _commit(self, name: str, step: int, manifest: bytes) -> None:
        with self.store.create(f"{name}/{MANIFEST}") as file:
            file.write(manifest)
        self.checkpoints.commit(name, step)

    def _together(self, group: dist.ProcessGroup, name: str, action: Any) -> list[Any]:
        """What ``action`` returns on each rank, on every rank.

        Raises:
            CheckpointError: on every rank, if any could not do it.
        """
        try:
            mine = (action(), None)
        except OSError as error:
            mine = (None, f"{self.store.place(name)}: not written: {why(error)}")
        results: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(results, mine, group=group)
        for rank, (_, problem) in enumerate(results):
            if problem:
                raise CheckpointError(f"rank {rank}: {problem}")
        return [result for result, _ in results]

    def load(self, name: str, state: State) -> tuple[dict[str, Any], bool]:
        manifest = self._manifest(name)
        self.checkpoints.check_run(name, manifest["run"])  # first: DCP would fail on the first tensor of another shape
        reader = self.store.reader(name)
        reader.fs = Files(self.store, name, reader.fs, manifest["files"] if self.cfg.verify == "checksum" else None)
        with one_line(self.store.place(name)):
            saved = reader.read_metadata().state_dict_metadata
            live = state.snapshot(None, whole=False)
            template = mapped(live, lambda tensor: like(tensor, local(tensor).detach().clone()))
            streams = len({key.split(".")[1] for key in saved if key.startswith("rng.")})
            template["rng"] = [mapped(template["rng"][0], lambda tensor: tensor.clone()) for _ in range(streams)]
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # "assuming … a single process"
                # Each rank for itself: what one can't read must not keep the others waiting.
                dcp.load(template, storage_reader=reader, no_dist=True)
        return template, False

    def _manifest(self, name: str) -> dict[str, Any]:
        """What :meth:`complete` wrote.

        Raises:
            CheckpointError: the checkpoint is not complete, or this is no manifest.
        """
        place = self.store.place(f"{name}/{MANIFEST}")
        try:
            with self.store.open(f"{name}/{MANIFEST}") as file:
                manifest = json.loads(file.read())
            checksum = manifest.pop("sha256")
            if self.cfg.verify == "checksum" and _checksum(manifest) != checksum:
                raise CheckpointError(f"{place}: is damaged: its content does not have its checksum")
            return {"run": manifest["run"], "files": manifest["files"]}
        except FileNotFoundError:
            raise CheckpointError(f"{self.store.place(name)}: is not complete: it has no {MANIFEST}") from None
        except OSError as error:
            raise CheckpointError(f"{place}: can't be read: {why(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{place}: is damaged: {type(error).__name__}") from None


class Planner(dcp.DefaultSavePlanner):
    """DCP's own plan; a fault may strike in the middle of what a rank writes."""

    def __init__(self, step: int, slow: float) -> None:
        super().__init__()
        self.step, self.slow, self.resolved = step, slow, 0

    def resolve_data(self, write_item: WriteItem) -> Any:
        """Called once for each item that is about to be written."""
        self.resolved += 1
        if self.resolved == len(self.plan.items) // 2 + 1:
            probe.point("save.write", self.step)
            time.sleep(self.slow)
        return super().resolve_data(write_item)


class Files:
    """DCP's file system below one checkpoint: lists what is written, and lets nothing be read that is not as listed.

    Args:
        usual: DCP's own, of its writer or reader, which does all else.
        rows: size and checksum of each file, by its name; None to verify nothing.
    """

    def __init__(self, store: Store, name: str, usual: Any, rows: dict[str, dict[str, Any]] | None = None) -> None:
        self.store, self.name, self.usual, self.rows = store, name, usual, rows
        self.written: dict[str, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.usual, name)

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """What DCP calls to open a file."""
        file = Path(path).name.removesuffix(".tmp")  # so .metadata is named until it is written
        if mode == "rb":
            with self._verified(file) as stream:
                yield stream
            return
        with self.usual.create_stream(path, mode) as stream, writing():
            yield (hashed := Hashed(stream))
        self.written[file] = {"bytes": hashed.size, "xxh3_128": hashed.hexdigest()}

    @contextmanager
    def _verified(self, name: str) -> Iterator[Any]:
        place = self.store.place(f"{self.name}/{name}")
        if self.rows is not None and name not in self.rows:
            raise CheckpointError(f"{place}: is not in {MANIFEST}: it is of another save")
        try:
            stream = self.store.open(f"{self.name}/{name}")
        except OSError as error:
            raise CheckpointError(f"{place}: can't be read: {why(error)}") from None
        with stream, hashing(stream) as digest:
            damaged = partial(self._check, place, stream, self.rows and self.rows[name], digest)
            if name == _METADATA:  # a pickle: nothing of it may be believed before
                damaged()
            try:
                yield stream
            except Exception:  # of what is damaged, anything
                damaged()
                raise
            damaged()

    def _check(self, place: str, stream: Any, row: dict[str, Any] | None, digest: Any) -> None:
        if row is not None and digest() != row["xxh3_128"]:
            raise CheckpointError(f"{place}: is damaged: its content does not have its checksum")

    def settled(self) -> dict[str, dict[str, Any]]:
        """Size and checksum of each file that this rank has written, when it is on the disk."""
        self.store.settle(*(f"{self.name}/{file}" for file in self.written))
        return self.written


def _checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's text, as it is without one."""
    return hashlib.sha256(json.dumps(manifest, indent=1).encode()).hexdigest()


@contextmanager
def one_line(place: str) -> Iterator[None]:
    """What DCP raises, on every rank, as one line: which ranks, and their first reason."""
    try:
        yield
    except CheckpointException as error:
        rank, (reason, _) = min(error.failures.items())
        if isinstance(reason, CheckpointError):
            raise reason from None
        text = " ".join(str(reason).split())
        raise CheckpointError(f"{place}: rank {rank}: {type(reason).__name__}: {text}") from None
    except OSError as error:
        raise CheckpointError(f"{place}: {why(error)}") from None
