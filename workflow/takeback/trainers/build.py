"""A fresh start: model, optimizer with two parameter groups, schedule, averaged weights, sampler, streams."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from takeback.trainers.data import Sampler, Text
from takeback.trainers.model import Transformer
from takeback.trainers.randomness import Randomness, key, seed_all
from takeback.trainers.settings import Settings
from takeback.trainers.state import State
from takeback.trainers.strategies import Strategy, like, local

_DTYPES = {
    "fp32": "float32",
    "bf16": "bfloat16 in forward and backward; float32: master parameters, moments, sums of gradients, loss",
}


def build(cfg: Settings, strategy: Strategy) -> State:
    """A fresh state, the same on every rank but for its share of it and for the streams of ``rng: stream``."""
    device = strategy.device
    seed_all(key(cfg.seed, "weights"), torch.device("cpu"))
    shape = {name: getattr(cfg, name) for name in ("width", "layers", "heads", "context", "dropout")}
    model = Transformer(**shape).to(device)
    average = copy.deepcopy(model).requires_grad_(False).eval()
    for module in (model, average):
        strategy.spread(module)
    blocks = reversed(model.blocks) if cfg.order == "reversed" else model.blocks
    modules = [model.token, model.position, *blocks, model.norm, model.head]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    others = [parameter for parameter in parameters if parameter.dim() < 2]
    optimizer = AdamW(
        [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=cfg.learning_rate,
        # One parameter at a time. The fused kernel rounds the last elements of a shard otherwise than the same
        # elements inside a whole tensor (torch 2.13, CPU: seen on 3 ranks).
        foreach=False,
    )
    for parameter in model.parameters():  # from the start, so that every state has the same names
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": like(parameter, torch.zeros_like(local(parameter))),
            "exp_avg_sq": like(parameter, torch.zeros_like(local(parameter))),
        }
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: rate(done, cfg))
    sampler = Sampler(cfg.samples, cfg.batch, cfg.shards, cfg.seed)
    return State(
        model,
        average,
        optimizer,
        schedule,
        sampler,
        Randomness(cfg.rng, cfg.seed, dist.get_rank(strategy.data), device, cfg.streams),
        cfg.optimizer_by,
    )


class AdamW(torch.optim.AdamW):
    """AdamW on what this rank holds of each tensor, in place.

    It works on each element for itself: the same bits as on sharded tensors (DTensor), which would derive for each
    operation how its result is sharded, at a third of a short run's cost.
    """

    def _init_group(self, group: dict[str, Any], *lists: list[Any], **more: Any) -> bool:
        complex_valued = super()._init_group(group, *lists, **more)
        for tensors in lists:
            tensors[:] = map(local, tensors)
        return complex_valued


def rate(done: int, cfg: Settings) -> float:
    """Share of the learning rate after ``done`` steps: linear warm-up, then a cosine to a tenth."""
    if done < cfg.warmup:
        return (done + 1) / cfg.warmup
    way = min(1.0, (done - cfg.warmup) / max(1, cfg.steps - cfg.warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * way))


def facts(cfg: Settings, model: nn.Module, text: Text) -> dict[str, Any]:
    """What a reader of the results must know about this run, for its provenance."""
    parameters = dict(model.named_parameters())
    return {
        "dataset": {"name": text.name, "bytes": len(text.bytes), "sha256": text.sha256},
        "dtype": _DTYPES[cfg.precision],
        "shapes": {
            "micro_batch": [cfg.batch, cfg.context],
            **{name: list(parameter.shape) for name, parameter in parameters.items()},
        },
        "parameters": sum(parameter.numel() for parameter in parameters.values()),
        "seed": cfg.seed,
        "strategy": cfg.strategy,
        "format": cfg.format,
        "reduction": cfg.reduction,
        "rng": cfg.rng,
        "loader": cfg.loader,
    }
