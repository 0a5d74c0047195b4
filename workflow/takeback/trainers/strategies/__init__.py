"""How a model is spread over ranks, and how the gradient of a step comes together: one module a strategy's kind.

A strategy's module has a class with ``spread`` (a model in place), ``add`` (the gradient of one
micro-batch) and ``mean`` (all of the step's, as ``parameter.grad``). Names of state and values of whole
tensors are the same under every strategy: what differs is who holds which part.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from takeback.trainers import mesh, topology
from takeback.trainers.settings import Settings

_MODULES = {"single": "replicated", "ddp": "replicated", "tp": "replicated"}


class Strategy(ABC):
    """One phase's ranks and their shares.

    Attributes:
        group: all ranks of the phase.
        mesh: the same ranks by dimension; None where there is but one, along which all is replicated.
        data: the ranks among which this one's samples are dealt; its rank there says which are its own.
        tells_samples: whether this rank tells the samples that it consumes: one of those that have the same.
    """

    def __init__(self, cfg: Settings, name: str, ranks: int, device: torch.device) -> None:
        """Form the groups. A collective of ALL ranks of the run, also of those that have no part in the phase."""
        self.cfg, self.name, self.device = cfg, name, device
        self.group = topology.first_ranks(ranks, cfg.timeout)
        sizes = mesh.dimensions(name, ranks, cfg.shard_ranks, cfg.tensor_ranks)
        self.takes_part = dist.get_rank() < ranks
        self.mesh: DeviceMesh | None = None
        self.data = self.group
        if list(sizes) != ["data"]:
            places = torch.arange(ranks).view(*sizes.values())
            self.mesh = DeviceMesh(device.type, places, mesh_dim_names=tuple(sizes))
            if "tensor" in sizes and self.takes_part:
                self.data = self.mesh.get_group(0)
        self.tells_samples = "tensor" not in sizes or not self.takes_part or self.mesh.get_local_rank("tensor") == 0

    @abstractmethod
    def spread(self, model: nn.Module) -> None:
        """Leave of ``model`` what this rank holds, in place."""

    @abstractmethod
    def forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Logits of one micro-batch, fp32; with ``precision: bf16`` computed by parameters rounded to it."""

    @abstractmethod
    def add(self, model: nn.Module, loss: Tensor) -> None:
        """Take the gradient of one micro-batch's ``loss``, which is not added to those of others here."""

    @abstractmethod
    def mean(self, model: nn.Module, inside: Callable[[], None]) -> Tensor:
        """Make ``grad`` of each parameter the mean over all micro-batches of the step; returns the mean loss.

        ``inside`` is called while the ranks exchange gradients.
        """


def of(cfg: Settings, name: str, ranks: int, device: torch.device) -> Strategy:
    """The strategy of the first ``ranks`` ranks; to be called on all ranks of the run alike."""
    module = "buckets" if cfg.reduction == "buckets" else _MODULES.get(name, "sharded")
    module = importlib.import_module(f"takeback.trainers.strategies.{module}")
    return module.Strategy(cfg, name, ranks, device)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, sharing its storage."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def like(tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor that is spread over the ranks as ``tensor`` is, of which this one holds ``part``; no copy."""
    if not hasattr(tensor, "to_local"):
        return part
    spread = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(part, tensor.device_mesh, tensor.placements, run_check=False, **spread)


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the matrices of each block: by columns, then by rows (Megatron-LM, arXiv:1909.08053), in place."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan: dict[str, Any] = {
        "qkv": ColwiseParallel(),
        "out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
