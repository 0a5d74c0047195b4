"""The whole state of a run under dotted names: one list for digests, checkpoints and handovers."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from takeback import probe
from takeback.trainers import randomness
from takeback.trainers.data import Sampler
from takeback.trainers.randomness import Randomness
from takeback.trainers.strategies.whole import mapped, whole_values


@dataclass
class State:
    """All that the next step depends on, and all that a restart must bring back."""

    model: nn.Module
    average: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    sampler: Sampler
    rng: Randomness
    optimizer_by: str = "name"
    best: dict[str, Any] = field(default_factory=lambda: {"loss": math.inf, "step": 0})
    step: int = 0

    def collect(self) -> dict[str, Any]:
        """Live values of this rank, nested, in a fixed order; tensors are not copied, but made whole if sharded.

        A collective where parameters are sharded.
        """
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        slots = self.optimizer.state
        moments = {
            slot: {name: slots[parameter][slot] for parameter, name in names.items()}
            for slot in ("exp_avg", "exp_avg_sq", "step")
        }
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        return whole_values(
            {
                "model": self.model.state_dict(),
                "optimizer": {**moments, "group": groups},
                "schedule": self.schedule.state_dict(),
                "ema": self.average.state_dict(),
                "sampler": {"epoch": self.sampler.epoch, "position": self.sampler.position},
                "rng": randomness.snapshot(self.rng.device),
                "best": dict(self.best),
                "step": self.step,
            }
        )

    def snapshot(self, group: dist.ProcessGroup | None, whole: bool = True) -> dict[str, Any]:
        """The state of the whole group, by fully qualified names and under no strategy's own.

        A collective where parameters are sharded, or random streams are each rank's own: ``rng`` lists those of
        all ranks of ``group``. Keyed streams are equal, and one stands for all.

        Args:
            group: None: of streams this rank's alone, and no collective where tensors are not made whole.
            whole: tensors whole and on the CPU, on rank 0 alone (elsewhere none need be); else each rank's parts.
        """
        options = StateDictOptions(full_state_dict=whole, cpu_offload=whole)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        if self.optimizer_by == "position":
            optimizer = self.optimizer.state_dict()
        own = randomness.snapshot(self.rng.device)
        streams: list[Any] = [own]
        if self.rng.by_rank and group is not None:
            streams = [None] * dist.get_world_size(group)
            dist.all_gather_object(streams, own, group=group)
        return {
            "model": model,
            "optimizer": optimizer,
            "schedule": self.schedule.state_dict(),
            "ema": get_model_state_dict(self.average, options=options),
            "sampler": {"epoch": self.sampler.epoch, "position": self.sampler.position, "each": self.sampler.each},
            "rng": streams,
            "best": dict(self.best),
            "step": self.step,
        }

    def restore(self, snapshot: dict[str, Any], rank: int, whole: bool = True) -> None:
        """Put a :meth:`snapshot` in place; a part that is missing stays as it is, as do streams of a ``rank`` that has
        none there.
        """
        options = StateDictOptions(full_state_dict=whole)
        if "model" in snapshot:
            set_model_state_dict(self.model, snapshot["model"], options=options)
        if "ema" in snapshot:
            set_model_state_dict(self.average, snapshot["ema"], options=options)
        if "optimizer" in snapshot and self.optimizer_by == "position":
            self.optimizer.load_state_dict(snapshot["optimizer"])
        elif "optimizer" in snapshot:
            set_optimizer_state_dict(self.model, self.optimizer, snapshot["optimizer"], options=options)
        if "schedule" in snapshot:
            self.schedule.load_state_dict(snapshot["schedule"])
        for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
            group["lr"] = rate  # the schedule owns the learning rate
        if "sampler" in snapshot:
            self.sampler.epoch = snapshot["sampler"]["epoch"]
            self.sampler.position = snapshot["sampler"]["position"]
            self.sampler.each = snapshot["sampler"]["each"]
        own = rank if self.rng.by_rank else 0
        if own < len(snapshot.get("rng", [])):
            randomness.restore(snapshot["rng"][own], self.rng.device)
        if "best" in snapshot:
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


def forget(part: str, snapshot: dict[str, Any] | None) -> dict[str, Any] | None:
    """The planted bugs: ``part`` of what was saved is lost, and stays as it is at a fresh start.

    ``checkpoint`` loses all of it, in silence.
    """
    if part == "none" or snapshot is None:
        return snapshot
    return None if part == "checkpoint" else {name: value for name, value in snapshot.items() if name != part}


def rounded(part: str, snapshot: dict[str, Any]) -> dict[str, Any]:
    """The planted bugs: ``moments`` or ``masters`` lose on the way what bf16 can't hold; counters of steps do not."""
    name = {"moments": "optimizer", "masters": "model"}.get(part)
    if name is None:
        return snapshot
    through = mapped(snapshot[name], lambda tensor: tensor.bfloat16().to(tensor.dtype) if tensor.dim() else tensor)
    return {**snapshot, name: through}
