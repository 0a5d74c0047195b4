"""Text that every machine has, cut into samples with ids, shuffled by epoch, dealt to ranks.

Order and content depend on the seed and on the number of shards, never on the number of
ranks or on the loader: a step always consumes the same samples.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import signal
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from takeback.trainers.model import VOCABULARY
from takeback.trainers.randomness import key

_WORKERS = 2
_CORRUPTED = 2  # input bytes replaced at random in each micro-batch
_PR_SET_PDEATHSIG = 1


class DataError(RuntimeError):
    """The text can't be had: one line."""


@dataclass(frozen=True)
class Text:
    """``length`` bytes: the sources of the standard library, concatenated in order of their names."""

    name: str
    bytes: np.ndarray

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.bytes.tobytes()).hexdigest()


def read_text(length: int, folder: str | None = None) -> Text:
    """The first ``length`` bytes of the running Python's standard library sources.

    Args:
        folder: where to look instead.

    Raises:
        DataError: there are no sources, or too few.
    """
    where = Path(folder or sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(where.glob("*.py")):
        if len(text) >= length:
            break
        text += path.read_bytes()
    if len(text) < length:
        raise DataError(
            f"text: {length} bytes needed, {len(text)} in {where}/*.py; "
            "install the sources of Python's standard library or lower --samples"
        )
    name = f"standard library sources of Python {sysconfig.get_python_version()}"
    return Text(name, np.frombuffer(bytes(text[:length]), dtype=np.uint8))


class Windows:
    """Sample ``i`` is the ``context`` bytes from ``i * context`` on; its target is one byte further."""

    def __init__(self, text: Text, context: int) -> None:
        self.bytes, self.context = text.bytes, context

    def __getitem__(self, ids: list[int]) -> tuple[list[int], np.ndarray]:
        """Ids, and uint8 windows of len(ids) x (context + 1)."""
        starts = np.array(ids)[:, None] * self.context
        return ids, self.bytes[starts + np.arange(self.context + 1)]


@dataclass
class Sampler:
    """Which samples come next: the epoch, and the steps of it that are done.

    ``each``: micro-batches that a rank has of a step, in a checkpoint those of its writer; 0 in a new run.
    """

    samples: int
    batch: int
    shards: int
    seed: int
    epoch: int = 0
    position: int = 0
    each: int = 0

    def deal(self, rank: int, ranks: int, how: str) -> range:
        """The micro-batches of a step that are this rank's.

        Args:
            how: ``anew`` from the number of ranks that there are. Bugs on purpose, of a run that goes on with another
                number: ``count``, as many as each rank had before; ``position``, from where this rank began before.
        """
        each = self.shards // ranks
        before = self.each or each
        self.each = before if how == "count" else each
        first = rank * (before if how in ("count", "position") else each)
        return range(first, first + self.each)

    def advance(self) -> None:
        """One global step has been consumed."""
        self.position += 1
        if self.position == self.samples // (self.shards * self.batch):
            self.epoch, self.position = self.epoch + 1, 0

    def plan(self, shards: range, steps: int) -> Iterator[list[int]]:
        """Ids of each micro-batch of ``shards`` in the next ``steps`` steps; moves nothing."""
        ahead = Sampler(**vars(self))
        for _ in range(steps):
            order = ahead.order()
            for shard in shards:
                first = (ahead.position * self.shards + shard) * self.batch
                yield order[first : first + self.batch]
            ahead.advance()

    def order(self) -> list[int]:
        """The shuffled sample ids of this epoch."""
        generator = torch.Generator().manual_seed(key(self.seed, "epoch", self.epoch))
        return torch.randperm(self.samples, generator=generator).tolist()


def batches(loader: str, windows: Windows, plan: Iterator[list[int]]) -> Iterator[tuple[list[int], np.ndarray]]:
    """Fetch the micro-batches of ``plan``, in this process or ahead of time in worker processes."""
    if loader == "inline":
        return (windows[ids] for ids in plan)
    from torch.utils.data import DataLoader

    parent = os.getpid()
    return iter(
        DataLoader(
            windows,
            sampler=plan,
            batch_size=None,
            num_workers=_WORKERS,
            prefetch_factor=4,
            # Arrays travel through the pipe: a tensor would lie in /dev/shm, where SIGKILL might leave it.
            collate_fn=_as_it_is,
            worker_init_fn=lambda _: _die_with(parent),
            # A DataLoader draws its base seed from the default generator: that stream is the training's.
            generator=torch.Generator(),
        )
    )


def tensors(windows: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets, int64, batch x context, from uint8 windows."""
    tokens = torch.from_numpy(windows.astype(np.int64)).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def corrupt(windows: np.ndarray) -> np.ndarray:
    """A copy with a few input bytes replaced: places drawn by ``random``, bytes by numpy's global stream."""
    noisy = windows.copy()
    rows, inputs = windows.shape[0], windows.shape[1] - 1
    for _ in range(_CORRUPTED):
        place = random.randrange(rows), random.randrange(inputs)
        noisy[place] = np.random.randint(VOCABULARY)
    return noisy


def _as_it_is(item: tuple[list[int], np.ndarray]) -> tuple[list[int], np.ndarray]:
    return item


def _die_with(parent: int) -> None:
    """Have the kernel kill this worker when its rank ends, however it ends (prctl(2))."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the request was in place
        os._exit(1)
