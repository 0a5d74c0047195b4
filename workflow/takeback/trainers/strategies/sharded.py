"""``fsdp``, ``hsdp``, ``fsdp+tp``: parameters sharded by ``fully_shard``, gradients added by shards.

FSDP adds a micro-batch's gradient to those before it, and the ranks' sums to one another: its bits
depend on the number of ranks. Under ``fixed-order`` its reduce-scatter is therefore replaced
(``FSDPModule.set_custom_reduce_scatter``) by one that keeps each micro-batch's gradient for itself, and
the slice that a rank owns is added in the fixed order of :mod:`takeback.trainers.reduction` when the
step's last one is there. Under ``allreduce`` FSDP does it all in its own way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from takeback.trainers import reduction, strategies
from takeback.trainers.strategies import local

#: Parameters are cast when they are gathered: what is sharded stays fp32, and gradients are widened before any sum.
POLICIES = {"fp32": MixedPrecisionPolicy(), "bf16": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}


class Leaves(ReduceScatter):
    """Gradients of one FSDP module, a micro-batch each, S slices x size of a slice."""

    def __init__(self, module: FSDPModule, slices: int) -> None:
        self.slices, self.kept, self.output = slices, [], None
        module.set_custom_reduce_scatter(self)
        module.set_all_reduce_hook(self.end)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    def allocate(self, size: list[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer of FSDP's; what nobody writes must not be a NaN by chance."""
        return torch.zeros(size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: object, op: object, async_op=False) -> None:
        """In place of the reduce-scatter."""
        self.kept.append(input_tensor.clone().view(self.slices, -1))

    def end(self, output: Tensor) -> None:
        """Called with the buffer that the gradients of the shards are views of; one rank scatters nothing."""
        if self.slices == 1:
            self.kept.append(output.clone().view(1, -1))
        self.output = output

    def add_up(self, group: dist.ProcessGroup, shards: int) -> None:
        """Put the mean over all micro-batches into the gradients of the shards."""
        torch.div(reduction.fixed_order_slice(self.kept, group), shards, out=self.output)
        self.kept = []


class Strategy(strategies.Strategy):
    """Each rank holds its shard of each parameter and gathers the others' for a block's time."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.leaves: list[Leaves] = []
        self.losses: list[Tensor] = []
        self.native = self.cfg.reduction == "allreduce"

    def spread(self, model: nn.Module) -> None:
        if self.name == "fsdp+tp":
            strategies.tensor_parallel(model, self.mesh["tensor"])
        over = self.mesh["shard"] if self.name == "fsdp+tp" else self.mesh
        trains = any(parameter.requires_grad for parameter in model.parameters())
        # By default the root keeps what it has gathered for a backward pass, which the averaged weights never have.
        keeps = None if trains else True
        for module in [*model.blocks, model]:
            fully_shard(module, mesh=over, reshard_after_forward=keeps, mp_policy=POLICIES[self.cfg.precision])
        modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        if trains and not self.native:
            slices = self.mesh["shard"].size()
            self.leaves = [Leaves(module, slices) for module in modules]

    def forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        # Before the pass: in it the root's parameters are those gathered, and a gradient of theirs is no shard's.
        if not self.native or not self.losses:
            model.zero_grad(set_to_none=True)
        return model(inputs).float()

    def add(self, model: nn.Module, loss: Tensor) -> None:
        loss.backward()
        self.losses.append(loss.detach().reshape(1))

    def mean(self, model: nn.Module, inside: Callable[[], None]) -> Tensor:
        loss = reduction.fixed_order(self.losses, self.data, inside)[0] / self.cfg.shards
        if self.native:  # FSDP has divided by the number of ranks, and added this rank's micro-batches
            for parameter in model.parameters():
                local(parameter.grad).div_(len(self.losses))
        for leaves in self.leaves:
            leaves.add_up(self.data, self.cfg.shards)
        self.losses = []
        return loss
