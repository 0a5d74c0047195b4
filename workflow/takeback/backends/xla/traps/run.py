"""What the traps have in common: a small model with dropout, its whole state, and one step."""

from __future__ import annotations

from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import Tensor, nn
from torch.nn import functional

_WIDTH, _BATCH = 32, 8
_SLOTS = ("step", "exp_avg", "exp_avg_sq")


class Run:
    """A run at its first step.

    Args:
        dropout: probability; its masks come from the generator of the device.
    """

    def __init__(self, dropout: float = 0.1) -> None:
        torch.manual_seed(0)
        self.device = torch_xla.device()
        layers = [nn.Linear(_WIDTH, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, _WIDTH), nn.LayerNorm(_WIDTH)]
        self.model = nn.Sequential(*layers, nn.Linear(_WIDTH, 1)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, foreach=False)
        for parameter in self.model.parameters():
            zeros = {slot: torch.zeros_like(parameter) for slot in _SLOTS[1:]}
            self.optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
        self.step = 0
        torch_xla.sync(wait=True)
        xm.set_rng_state(1)

    def state(self) -> dict[str, Any]:
        """Live values, nested; nothing is copied."""
        slots = {name: self.optimizer.state[p] for name, p in self.model.named_parameters()}
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": {slot: {name: of[slot] for name, of in slots.items()} for slot in _SLOTS},
            "rng": {"xla": xm.get_rng_state()},
            "step": self.step,
        }

    @torch.no_grad()
    def restore(self, saved: dict[str, Any]) -> None:
        """Put back what :meth:`state` gave; the generator last, as each sync moves it on."""
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(saved["model"][name])
        for name, parameter in self.model.named_parameters():
            for slot in _SLOTS:
                self.optimizer.state[parameter][slot].copy_(saved["optimizer"][slot][name])
        self.step = saved["step"]
        torch_xla.sync(wait=True)
        xm.set_rng_state(saved["rng"]["xla"])

    def advance(self, sync_before_backward: bool = False) -> Tensor:
        """One step: one graph, or two if there is a sync between forward and backward. Returns the loss."""
        self.step += 1
        loss = self.gradients(self.step, sync_before_backward)
        self.optimizer.step()
        torch_xla.sync(wait=True)
        return loss

    def gradients(self, batch: int, sync_before_backward: bool = False) -> Tensor:
        """Forward and backward, of batch number ``batch``. Returns the loss."""
        inputs = torch.randn(_BATCH, _WIDTH, generator=torch.Generator().manual_seed(batch))
        targets = inputs.sum(dim=1, keepdim=True).sin()
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(inputs.to(self.device)), targets.to(self.device))
        if sync_before_backward:
            torch_xla.sync(wait=True)
        loss.backward()
        return loss.detach()
