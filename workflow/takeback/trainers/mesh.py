"""Which ranks share what: the dimensions of the device mesh that each strategy asks for. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Dimensions along which ranks have other samples; along ``tensor`` they have the same.
DATA = ("data", "replicate", "shard")
STRATEGIES = ("ddp", "single", "fsdp", "hsdp", "tp", "fsdp+tp")


def dimensions(strategy: str, ranks: int, shard_ranks: int, tensor_ranks: int) -> dict[str, int]:
    """Name → size of each dimension of the mesh, outermost first; the sizes multiply to ``ranks``.

    Args:
        shard_ranks: ranks over which ``hsdp`` shards a parameter; each such group holds a replica of the model.
        tensor_ranks: ranks that share each layer's matrices in ``fsdp+tp``.

    Raises:
        ValueError: the strategy can't have this number of ranks: one line.
    """
    inner = {"hsdp": ("shard_ranks", shard_ranks), "fsdp+tp": ("tensor_ranks", tensor_ranks)}.get(strategy)
    if inner and ranks % inner[1]:
        raise ValueError(f"strategy {strategy} on {ranks} ranks: {inner[0]}, {inner[1]}, does not divide them")
    if strategy == "single" and ranks != 1:
        raise ValueError(f"strategy single on {ranks} ranks: it holds the whole model on 1")
    return {
        "single": {"data": 1},
        "ddp": {"data": ranks},
        "fsdp": {"shard": ranks},
        "hsdp": {"replicate": ranks // shard_ranks, "shard": shard_ranks},
        "tp": {"data": 1, "tensor": ranks},
        "fsdp+tp": {"shard": ranks // tensor_ranks, "tensor": tensor_ranks},
    }[strategy]


def of(settings: Mapping[str, Any], ranks: int) -> dict[str, int]:
    """:func:`dimensions` for a run of these settings."""
    return dimensions(settings["strategy"], ranks, settings["shard_ranks"], settings["tensor_ranks"])


def check_together(strategy: str, reduction: str, optimizer_by: str, format: str, precision: str) -> None:
    """Settings that depend on one another.

    Raises:
        ValueError: these can't go together: one line that begins with the setting's name.
    """
    if reduction == "buckets" and strategy != "ddp":
        raise ValueError(f"reduction: buckets are those of DistributedDataParallel; not with strategy {strategy}")
    if reduction == "buckets" and precision != "fp32":
        raise ValueError(f"reduction: buckets add gradients of fp32 parameters; not with precision {precision}")
    if optimizer_by == "position" and (strategy not in ("ddp", "single") or format != "file"):
        raise ValueError(
            f"optimizer_by: position is for whole tensors in one file; not with strategy {strategy}, format {format}"
        )


def data_ranks(dimensions: dict[str, int]) -> int:
    """Into how many parts the virtual shards of a step are dealt."""
    return math.prod(size for name, size in dimensions.items() if name in DATA)
