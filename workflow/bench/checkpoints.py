"""What a save and a load of ours cost against the bare ones of torch, for the same state and in one run, as ratios.

    python workflow/bench/checkpoints.py

``file`` against ``torch.save`` and ``torch.load``, ``dcp`` against ``dcp.save`` (without its fsync) and ``dcp.load``,
call by call in turn, in folders of one temporary directory. Of our save the time in fsync is shown apart, and so is
that of the checksum alone. The slowest rank counts; the median of the repetitions is told.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as bare
from takeback.trainers import strategies
from takeback.trainers.build import build
from takeback.trainers.checkpoints import Checkpoints
from takeback.trainers.settings import Settings
from takeback.trainers.strategies.whole import mapped
from xxhash import xxh3_128

#: Width and layers of models whose state (weights, average, two moments: 16 bytes a parameter) is of about so many MB.
SIZES = {1: (48, 1), 200: (512, 4)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--worlds", type=int, nargs="+", default=[1, 2])
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="MB", choices=SIZES)
    options.add_argument("--repeat", type=int, default=7)
    options.add_argument("--folder", help="where to write; its file system is what is measured")
    args = options.parse_args()
    print("format\tworld\tMB\tsave, ratio\tload, ratio\tbare save, ms\tfsync, ms\tbare load, ms\tits checksum, ms")
    for size in args.sizes:
        for world in args.worlds:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                forked.run(world, measure_all, size, args.repeat, Path(folder))


def measure_all(size: int, repeat: int, folder: Path) -> None:
    """Print a line for each format; a collective of all ranks."""
    for format in ("file", "dcp"):
        measure(format, size, repeat, folder / format)


def measure(format: str, size: int, repeat: int, folder: Path) -> None:
    """Print one line; a collective of all ranks. The state is whole on each rank for ``file``, else sharded."""
    width, layers = SIZES[size]
    world, rank = dist.get_world_size(), dist.get_rank()
    name = "fsdp" if format == "dcp" and world > 1 else "ddp"
    cfg = Settings(str(folder / "ours"), width=width, layers=layers, strategy=name, format=format, keep=1)
    share = strategies.of(cfg, name, world, torch.device("cpu"))
    state, kept = build(cfg, share), Checkpoints(cfg, {})
    theirs = folder / "theirs"
    # In a file of its own each time, as ours are: pages of an old file cost less than new ones.
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "file": (lambda: _torch_save(state, theirs), lambda: state.restore(_torch_load(theirs), rank)),
        "dcp": (lambda: _dcp_save(state, theirs), lambda: _dcp_load(state, theirs, rank)),
    }
    save, load = ways[format]
    rows = []
    for _ in range(repeat + 1):
        state.step += 1
        shutil.rmtree(theirs, ignore_errors=True) if rank == 0 else None
        with _fsyncs() as synced:
            mine = _timed(lambda: kept.save(state, share.group))
        other = _timed(save)
        rows.append([mine, other, sum(synced), _timed(lambda: kept.restore(state, share)), _timed(load)])
    took = torch.tensor(rows[1:])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    if rank == 0:
        ours, bare_save, synced, ours_load, bare_load = took.T
        both = ((ours - synced, bare_save), (ours_load, bare_load))
        ratios = [statistics.median((a / b).tolist()) for a, b in both]
        times = [1000 * float(part.median()) for part in (bare_save, synced, bare_load)]
        newest = f"ours/step-{state.step:08d}"
        content = list(folder.glob(f"{newest}.pt" if format == "file" else f"{newest}.dcp/*.distcp"))
        hashed = sum(_hash(path) for path in content)
        total = round(sum(path.stat().st_size for path in content) / 1e6, 1)
        row = [*(f"{ratio:.2f}" for ratio in ratios), *(f"{part:.1f}" for part in times), f"{1000 * hashed:.1f}"]
        print(format, world, total, *row, sep="\t", flush=True)
    dist.barrier()


def _torch_save(state: Any, folder: Path) -> None:
    snapshot = state.snapshot(dist.group.WORLD)
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
        torch.save(snapshot, folder / "state.pt")
    dist.barrier()


def _torch_load(folder: Path) -> Any:
    return torch.load(folder / "state.pt", map_location="cpu", weights_only=True)


def _dcp_save(state: Any, folder: Path) -> None:
    bare.save(
        state.snapshot(dist.group.WORLD, whole=False), storage_writer=bare.FileSystemWriter(folder, sync_files=False)
    )


def _dcp_load(state: Any, folder: Path, rank: int) -> None:
    template = mapped(state.snapshot(dist.group.WORLD, whole=False), lambda tensor: tensor.detach().clone())
    bare.load(template, storage_reader=bare.FileSystemReader(folder))
    state.restore(template, rank, whole=False)


def _timed(call: Callable[[], object]) -> float:
    dist.barrier()
    started = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - started


def _hash(path: Path) -> float:
    content = path.read_bytes()
    started = time.perf_counter()
    xxh3_128(content)
    return time.perf_counter() - started


@contextmanager
def _fsyncs() -> Any:
    """The seconds of each fsync of this process meanwhile."""
    took: list[float] = []
    fsync = os.fsync

    def timed(descriptor: int) -> None:
        started = time.perf_counter()
        fsync(descriptor)
        took.append(time.perf_counter() - started)

    os.fsync = timed
    try:
        yield took
    finally:
        os.fsync = fsync


if __name__ == "__main__":
    main()
