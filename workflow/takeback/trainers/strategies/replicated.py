"""``single``, ``ddp``, ``tp``: each rank takes the gradient of all that it holds, and one flat buffer is summed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from takeback.trainers import reduction, strategies
from takeback.trainers.strategies import like, local


class Strategy(strategies.Strategy):
    """Parameters are whole on each rank, but for those that ``tp`` splits: these are nobody else's to add."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.leaves: list[Tensor] = []

    def spread(self, model: nn.Module) -> None:
        if self.name == "tp":
            strategies.tensor_parallel(model, self.mesh["tensor"])

    def forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        if self.cfg.precision == "fp32":
            return model(inputs)
        rounded = {name: parameter.bfloat16() for name, parameter in model.named_parameters()}
        return torch.func.functional_call(model, rounded, inputs).float()

    def add(self, model: nn.Module, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        self.leaves.append(reduction.flatten([local(gradient) for gradient in gradients], loss))

    def mean(self, model: nn.Module, inside: Callable[[], None]) -> Tensor:
        mean = reduction.REDUCTIONS[self.cfg.reduction](self.leaves, self.data, inside) / self.cfg.shards
        self.leaves = []
        parameters = list(model.parameters())
        sizes = [local(parameter).numel() for parameter in parameters]
        for parameter, part in zip(parameters, mean[:-1].split(sizes), strict=True):
            parameter.grad = like(parameter, part.view_as(local(parameter)))
        return mean[-1]
