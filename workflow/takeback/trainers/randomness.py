"""Every random stream of a rank: seed, snapshot, restore.

``keyed``: before each micro-batch all streams are seeded by (seed, step, shard), and after the
step by (seed, step) alone, so that what is drawn depends on no topology and what lies between
two steps is equal on all ranks. ``stream``: each rank's streams are seeded once, by (seed,
rank), and just run on, as most programs do; then the state between steps must be saved.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

BETWEEN_STEPS = -1


def key(*parts: int | str) -> int:
    """A 63-bit seed that depends on every one of ``parts`` and on their order."""
    digest = hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the streams of torch (CPU and ``device``), python's ``random`` and numpy."""
    # Not torch.manual_seed: without CUDA it stores a stack trace at each call for a later start of CUDA.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed >> 32, seed & 0xFFFFFFFF])


class Randomness:
    """The streams of this rank in one of the two modes.

    Args:
        mode: ``keyed`` or ``stream``.
        seed: the seed of the run.
        rank: this rank; it tells the streams of the ranks apart in mode ``stream``.
        device: where the model is.
        streams: how ``stream`` is saved: ``by_rank``, or ``one_key`` for all ranks, which keeps one of them.
    """

    def __init__(self, mode: str, seed: int, rank: int, device: torch.device, streams: str = "by_rank") -> None:
        self.keyed = mode == "keyed"
        self.by_rank = not self.keyed and streams == "by_rank"
        self.seed, self.device = seed, device
        seed_all(key(seed, 0, BETWEEN_STEPS) if self.keyed else key(seed, "rank", rank), device)

    def enter(self, step: int, shard: int) -> None:
        """To be called before micro-batch ``shard`` of global step ``step`` draws anything."""
        if self.keyed:
            seed_all(key(self.seed, step, shard), self.device)

    def leave(self, step: int) -> None:
        """To be called when global step ``step`` is done."""
        if self.keyed:
            seed_all(key(self.seed, step, BETWEEN_STEPS), self.device)


def snapshot(device: torch.device) -> dict[str, Tensor]:
    """The state of each stream by name, as tensors that ``torch.load(weights_only=True)`` reads."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    streams = {
        "torch": torch.get_rng_state(),
        # Each is at most 32 bits wide or a float, so one float64 tensor holds all exactly.
        "python": torch.tensor([version, *words, math.nan if gauss is None else gauss], dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), position, has_gauss, cached], dtype=torch.float64),
    }
    if device.type == "cuda":
        streams["cuda"] = torch.cuda.get_rng_state(device)
    return streams


def restore(streams: dict[str, Any], device: torch.device) -> None:
    """Put back what :func:`snapshot` gave."""
    torch.set_rng_state(streams["torch"])
    version, *words, gauss = streams["python"].tolist()
    random.setstate((int(version), tuple(map(int, words)), None if math.isnan(gauss) else gauss))
    *keys, position, has_gauss, cached = streams["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), int(position), int(has_gauss), cached))
    if device.type == "cuda" and "cuda" in streams:
        torch.cuda.set_rng_state(streams["cuda"], device)
