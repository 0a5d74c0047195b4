"""``ddp`` by torch's own DistributedDataParallel, which adds gradients up bucket by bucket in the backward pass.

A fresh wrapper fills its buckets in the reverse order of the parameters; when the first backward pass has shown in
which order gradients come, it fills them in that order (torch/nn/parallel/distributed.py, ``_rebuild_buckets`` in
``_pre_forward``). Where in a buffer an element lies decides in which order gloo's ring adds it: with three or more
ranks the first step of a process has other bits than the same step of one that has been running. With
``find_unused_parameters`` buckets are never rebuilt; after a warm-up they are before the first step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from takeback.trainers import reduction, strategies


class Strategy(strategies.Strategy):
    """The model is whole on each rank. State is that of the wrapped module, whose names have no ``module.``."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.wrapper: DistributedDataParallel | None = None
        self.losses: list[Tensor] = []

    def spread(self, model: nn.Module) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return
        self.wrapper = DistributedDataParallel(
            model,
            process_group=self.group,
            bucket_cap_mb=self.cfg.bucket_mb or None,
            find_unused_parameters=self.cfg.buckets == "find_unused",
        )
        if self.cfg.buckets == "warmed":
            self._warm_up()

    def _warm_up(self) -> None:
        """One backward pass whose gradients the first step drops; its forward pass rebuilds the buckets.

        It leaves nothing else: no optimizer is there yet, and random streams are seeded after this.
        """
        nothing = torch.zeros(self.cfg.batch, self.cfg.context, dtype=torch.int64, device=self.device)
        self.wrapper(nothing).sum().backward()

    def forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        if self.wrapper is None or model is not self.wrapper.module:
            return model(inputs)  # the averaged weights, which nobody trains
        if not self.losses:
            model.zero_grad(set_to_none=True)
        with nullcontext() if self._is_last() else self.wrapper.no_sync():
            return self.wrapper(inputs)

    def add(self, model: nn.Module, loss: Tensor) -> None:
        loss.backward()
        self.losses.append(loss.detach().reshape(1))

    def mean(self, model: nn.Module, inside: Callable[[], None]) -> Tensor:
        loss = reduction.fixed_order(self.losses, self.group, inside)[0] / self.cfg.shards
        for parameter in model.parameters():  # the mean over ranks of what each has added up
            parameter.grad.div_(len(self.losses))
        self.losses = []
        return loss

    def _is_last(self) -> bool:
        """Whether this micro-batch is the last of the step: its backward pass exchanges the sum of all."""
        return len(self.losses) + 1 == self.cfg.shards // dist.get_world_size(self.group)
