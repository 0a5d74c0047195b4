"""The whole state of a run on the bridge, the generator of the device included, under dotted names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn

from takeback.trainers import randomness
from takeback.trainers.data import Sampler

_HOST = torch.device("cpu")
_SLOTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class State:
    """All that the next step depends on, and all that a restart must bring back."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    sampler: Sampler
    step: int = 0

    def collect(self) -> dict[str, Any]:
        """Live values, nested, in a fixed order; nothing is copied, and nothing is executed on the device."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        slots = self.optimizer.state
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": {slot: {name: slots[p][slot] for p, name in names.items()} for slot in _SLOTS},
            "schedule": self.schedule.state_dict(),
            "sampler": {"epoch": self.sampler.epoch, "position": self.sampler.position},
            # A number of up to 64 bits without a sign: too large for a tensor of int64.
            "rng": {**randomness.snapshot(_HOST), "xla": xm.get_rng_state()},
            "step": self.step,
        }

    @torch.no_grad()
    def restore(self, saved: dict[str, Any], forget: str = "none", then: str = "nothing") -> None:
        """Put back what :meth:`collect` gave; the generator of the device last, as each sync moves it on.

        Args:
            forget: ``rng``: a bug on purpose, the generator of the device stays that of a fresh start.
            then: ``sync``: another, a sync after all is in place.
        """
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(saved["model"][name])
        for name, parameter in self.model.named_parameters():
            for slot in _SLOTS:
                self.optimizer.state[parameter][slot].copy_(saved["optimizer"][slot][name])
        self.schedule.load_state_dict(saved["schedule"])
        for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
            group["lr"] = rate
        self.sampler.epoch, self.sampler.position = saved["sampler"]["epoch"], saved["sampler"]["position"]
        self.step = saved["step"]
        randomness.restore({name: value for name, value in saved["rng"].items() if name != "xla"}, _HOST)
        torch_xla.sync(wait=True)
        if forget != "rng":
            xm.set_rng_state(saved["rng"]["xla"])
        if then == "sync":
            torch_xla.sync()
