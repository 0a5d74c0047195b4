"""A directory that all ranks write (torch.distributed.checkpoint): each its parts, at least one file a rank.

DCP itself doesn't say when a directory is complete: its ``.metadata`` is there before all is on disk, and knows no
content. Here ``manifest.json``, written last and whole, lists each file with its size and SHA-256: a directory without
it was never completed, one whose files are not those of the list was altered. Each rank verifies the files that it
reads from, when it reads them. The manifest has a SHA-256 of its own.

Values that every rank has (counters, keyed random streams) are saved by one of them; ``rng`` of ``rng: stream`` lists
the streams of all ranks under keys of their own. One key for all would keep one rank's and drop the others', without
a word: DCP takes values of the same key for replicas (``dedup_save_plans``), and spreads what it keeps over the ranks,
so that on three ranks torch's and numpy's stream were those of rank 0 and python's was that of rank 1 (torch 2.13).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, WriteItem

from takeback import probe
from takeback.trainers import checkpoints, files
from takeback.trainers.checkpoints import CheckpointError
from takeback.trainers.state import State
from takeback.trainers.strategies.whole import mapped

MANIFEST = "manifest.json"
_METADATA = ".metadata"


class Format(checkpoints.Format):
    """See the module."""

    def save(self, step: int, state: State, group: dist.ProcessGroup) -> None:
        probe.point("save.begin", step)
        parts = state.snapshot(group, whole=False)
        path = self.prepare(step, group)
        with one_line(path):
            dcp.save(parts, storage_writer=Writer(path), planner=Planner(step, self.cfg.slow), process_group=group)
        self.complete(path, step, group)

    def prepare(self, step: int, group: dist.ProcessGroup) -> Path:
        """An empty directory, whatever a killed save has left there; known to all ranks when this returns."""
        path = self.folder / f"step-{step:08d}.dcp"
        together(group, path, lambda: _emptied(path) if dist.get_rank(group) == 0 else None)
        return path

    def complete(self, path: Path, step: int, group: dist.ProcessGroup) -> None:
        """All parts are written: bring them to the disk, list them, and only then say so."""
        probe.point("save.written", step)
        clock = files.Clock()
        rows = together(group, path, partial(_sealed, path, dist.get_rank(group), files.WAYS[self.cfg.write][1]))
        clock("seal")
        listed = {name: row for part in rows for name, row in part.items()}
        manifest = {"run": self.checkpoints.run, "step": step, "files": listed}
        manifest = json.dumps({**manifest, "sha256": _checksum(manifest)}, indent=1).encode()
        together(group, path, lambda: self._commit(path, step, manifest) if dist.get_rank(group) == 0 else None)
        clock("commit")
        probe.record("note", step=step, text=f"written {self.cfg.write}", seconds=clock.took)
        probe.saved(step)

    def _commit(self, path: Path, step: int, manifest: bytes) -> None:
        files.write(path / MANIFEST, manifest, self.cfg.write)
        if files.WAYS[self.cfg.write][2]:
            files.sync(path.parent)  # the directory's own name
        self.checkpoints.commit(path.name, step)

    def load(self, path: Path, state: State) -> tuple[dict[str, Any], bool]:
        manifest = read_manifest(path, self.cfg.verify)
        self.checkpoints.check_run(path, manifest["run"])  # first: DCP would fail on the first tensor of another shape
        reader = Reader(path, manifest["files"] if self.cfg.verify == "checksum" else None)
        with one_line(path):
            saved = reader.read_metadata().state_dict_metadata
            template = mapped(state.snapshot(None, whole=False), lambda tensor: tensor.detach().clone())
            streams = len({name.split(".")[1] for name in saved if name.startswith("rng.")})
            template["rng"] = [mapped(template["rng"][0], lambda tensor: tensor.clone()) for _ in range(streams)]
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # "assuming … a single process"
                # Each rank for itself: what one can't read must not keep the others waiting.
                dcp.load(template, storage_reader=reader, no_dist=True)
        return template, False


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


class Reader(dcp.FileSystemReader):
    """Reads nothing that is not what was written.

    Args:
        files: size and SHA-256 of each file, by its name; None to verify nothing.
    """

    def __init__(self, path: Path, files: dict[str, dict[str, Any]] | None) -> None:
        super().__init__(path)
        self.folder, self.files = path, files

    def read_metadata(self, *arguments: Any, **more: Any) -> Any:
        self._verify(_METADATA)
        return super().read_metadata(*arguments, **more)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        for name in sorted({self.storage_data[item.storage_index].relative_path for item in plan.items}):
            self._verify(name)
        return super().read_data(plan, planner)

    def _verify(self, name: str) -> None:
        if self.files is None:
            return
        if name not in self.files:
            raise CheckpointError(f"{self.folder / name}: is not in {MANIFEST}: it is of another save")
        try:
            found = _row(self.folder / name)
        except OSError as error:
            raise CheckpointError(f"{self.folder / name}: can't be read: {error.strerror}") from None
        if found != self.files[name]:
            raise CheckpointError(f"{self.folder / name}: is damaged: its content does not have its checksum")


def _checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's text, as it is without one."""
    return hashlib.sha256(json.dumps(manifest, indent=1).encode()).hexdigest()


def read_manifest(path: Path, verify: str = "checksum") -> dict[str, Any]:
    """What :meth:`Format.complete` wrote.

    Raises:
        CheckpointError: the directory is not complete, or this is no manifest.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        checksum = manifest.pop("sha256")
        if verify == "checksum" and _checksum(manifest) != checksum:
            raise CheckpointError(f"{path / MANIFEST}: is damaged: its content does not have its checksum")
        return {"run": manifest["run"], "files": manifest["files"]}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is not complete: it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path / MANIFEST}: is damaged: {type(error).__name__}") from None


class Writer(dcp.FileSystemWriter):
    """Without DCP's own fsync, which comes before ``.metadata`` has left Python's buffer (torch 2.13): we do it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, sync_files=False, overwrite=True)

    def write_data(self, *arguments: Any) -> Any:
        try:
            return super().write_data(*arguments)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch's zip file hides it: "unexpected pos 704 vs 598"
                raise error.__context__ from None
            raise


def together(group: dist.ProcessGroup, path: Path, action: Any) -> list[Any]:
    """What ``action`` returns on each rank, on every rank.

    Raises:
        CheckpointError: on every rank, if any could not do it.
    """
    try:
        mine = (action(), None)
    except OSError as error:
        mine = (None, f"{path}: not written: {error.strerror}")
    results: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(results, mine, group=group)
    for rank, (_, problem) in enumerate(results):
        if problem:
            raise CheckpointError(f"rank {rank}: {problem}")
    return [result for result, _ in results]


class one_line:
    """Turns what DCP raises, on every rank, into one line: which ranks, and their first reason."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, CheckpointException):
            rank, (reason, _) = min(error.failures.items())
            if isinstance(reason, CheckpointError):
                raise reason from None
            text = " ".join(str(reason).split())
            raise CheckpointError(f"{self.path}: rank {rank}: {type(reason).__name__}: {text}") from None
        if isinstance(error, OSError):
            raise CheckpointError(f"{self.path}: {error.strerror}") from None


def _emptied(path: Path) -> None:
    if path.exists():
        checkpoints.remove(path)
    path.mkdir(parents=True)


def _sealed(path: Path, rank: int, sync: bool) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of each file that this rank has written, when it is on the disk."""
    own = sorted(path.glob(f"__{rank}_*.distcp")) + ([path / _METADATA] if rank == 0 else [])
    for file in own if sync else []:
        files.sync(file)
    return {file.name: _row(file) for file in own}


def _row(file: Path) -> dict[str, Any]:
    with open(file, "rb") as content:
        return {
            "bytes": os.fstat(content.fileno()).st_size,
            "sha256": hashlib.file_digest(content, "sha256").hexdigest(),
        }
