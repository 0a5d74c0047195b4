"""The whole state of a run under dotted names: one list for digests, checkpoints and handovers."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from takeback import probe
from takeback.trainers import randomness
from takeback.trainers.data import Sampler
from takeback.trainers.randomness import Randomness


@dataclass
class State:
    """All that the next step depends on, and all that a restart must bring back."""

    model: nn.Module
    average: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    sampler: Sampler
    rng: Randomness
    best: dict[str, Any] = field(default_factory=lambda: {"loss": math.inf, "step": 0})
    step: int = 0

    def collect(self) -> dict[str, Any]:
        """Live values of this rank, nested, in a fixed order; tensors are not copied."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        slots = self.optimizer.state
        moments = {
            slot: {name: slots[parameter][slot] for parameter, name in names.items()}
            for slot in ("exp_avg", "exp_avg_sq", "step")
        }
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        return {
            "model": self.model.state_dict(),
            "optimizer": {**moments, "group": groups},
            "schedule": self.schedule.state_dict(),
            "ema": self.average.state_dict(),
            "sampler": {"epoch": self.sampler.epoch, "position": self.sampler.position},
            "rng": randomness.snapshot(self.rng.device),
            "best": dict(self.best),
            "step": self.step,
        }

    def snapshot(self, group: dist.ProcessGroup) -> dict[str, Any]:
        """The state of the whole group: as :meth:`collect`, but ``rng`` lists the streams of all ranks.

        A collective where the ranks' streams differ. Keyed streams are equal, and one stands for all.
        """
        state = self.collect()
        streams: list[Any] = [state["rng"]]
        if not self.rng.keyed:
            streams = [None] * dist.get_world_size(group)
            dist.all_gather_object(streams, state["rng"], group=group)
        return {**state, "rng": streams}

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Any], rank: int) -> None:
        """Put a :meth:`snapshot` in place; a rank that it has no streams for keeps its own."""
        self.model.load_state_dict(snapshot["model"])
        self.average.load_state_dict(snapshot["ema"])
        for name, parameter in self.model.named_parameters():
            for slot, value in self.optimizer.state[parameter].items():
                value.copy_(snapshot["optimizer"][slot][name])
        for group, saved in zip(self.optimizer.param_groups, snapshot["optimizer"]["group"], strict=True):
            group.update(saved)
        self.schedule.load_state_dict(snapshot["schedule"])
        for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
            group["lr"] = rate  # the schedule owns the learning rate
        self.sampler.epoch = snapshot["sampler"]["epoch"]
        self.sampler.position = snapshot["sampler"]["position"]
        own = 0 if self.rng.keyed else rank
        if own < len(snapshot["rng"]):
            randomness.restore(snapshot["rng"][own], self.rng.device)
        self.best = dict(snapshot["best"])
        self.step = snapshot["step"]

    def digest(self) -> int:
        """63 bits of a SHA-256 over all that must be equal on every rank."""
        state = self.collect()
        if not self.rng.keyed:
            del state["rng"]
        digest = hashlib.sha256()
        for name, value in probe.flatten(state):
            raw = value.detach().cpu().numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode()
            digest.update(name.encode() + raw)
        return int.from_bytes(digest.digest()[:8], "big") >> 1


def forget(part: str, snapshot: dict[str, Any] | None, fresh: State) -> dict[str, Any] | None:
    """The planted bugs: ``part`` of what was saved is lost and keeps its value of a fresh start.

    ``checkpoint`` loses all of it, in silence.
    """
    if part == "none" or snapshot is None:
        return snapshot
    if part == "checkpoint":
        return None
    without_streams = {**fresh.collect(), "rng": []}
    return {**snapshot, part: without_streams[part]}
