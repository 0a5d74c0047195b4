"""Who takes part, counted before anything is trusted: devices of a mesh, or processes.

A world that is smaller than it was asked for trains as well, and resumes as well: nothing else would tell.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor

from takeback import probe
from takeback.trainers.reduction import fixed_order

NOT_RUN = 69  # EX_UNAVAILABLE


class WorldError(RuntimeError):
    """There are not the devices or ranks that were asked for: one line."""


def devices() -> int:
    """How many devices PJRT has in all processes. Makes its client.

    Raises:
        WorldError: none of the kind that ``PJRT_DEVICE`` names, or no library for it.
    """
    try:
        return xr.global_runtime_device_count()
    except (RuntimeError, OSError, ImportError) as error:
        first = " ".join(str(error).split()).split(". ")[0]
        raise WorldError(f"no PJRT device of kind {os.environ.get('PJRT_DEVICE')}: {first}") from None


def mesh(world: int) -> xs.Mesh:
    """One axis, ``data``, over ``world`` devices.

    Raises:
        WorldError: there are not as many, or a batch is not spread over all of them.
    """
    if (there := devices()) != world:
        raise WorldError(f"{world} devices were asked for, PJRT has {there} of kind {xr.device_type()}")
    found = xs.Mesh(np.arange(world), (world,), ("data",))
    ones = torch.ones(world).to(torch_xla.device())
    # What each device holds by itself: one element if it is split, all of them if not.
    shards = xs.mark_sharding(ones, found, ("data",)).local_shards
    check(world, len({shard.shard_device for shard in shards}), sum(int(shard.data.sum()) for shard in shards))
    return found


def ranks(world: int, backend: str) -> None:
    """Join a process group: ``gloo``, on the host, or the bridge's own, ``xla``.

    Raises:
        WorldError: there is no device, or the group is not one of ``world`` ranks.
    """
    devices()
    if backend == "xla":
        importlib.import_module("torch_xla.distributed.xla_backend")  # registers it
    dist.init_process_group(backend, init_method="xla://" if backend == "xla" else None)
    ones = torch.ones(1).to(torch_xla.device() if backend == "xla" else "cpu")
    dist.all_reduce(ones)
    check(world, dist.get_world_size(), int(ones))


def check(world: int, size: int, total: int) -> None:
    """Raise :class:`WorldError` unless the size of the world and a sum of ones over it are ``world``."""
    if (size, total) != (world, world):
        raise WorldError(
            f"a world of {world} was asked for; this process is in one of {size}, and a sum of ones over it is {total}"
        )


def mean(leaves: Sequence[Tensor], count: int, parameters: Sequence[Tensor]) -> Tensor:
    """Add all ranks' ``leaves`` in one fixed order on the host, and make ``grad`` of each parameter their mean.

    Args:
        leaves: this rank's, each the gradients of all ``parameters`` and a loss, flat, on the CPU.
        count: how many leaves there are on all ranks.

    Returns:
        The mean loss.
    """
    sizes = [*(parameter.numel() for parameter in parameters), 1]
    *gradients, loss = torch.split(fixed_order(leaves, dist.group.WORLD) / count, sizes)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.view_as(parameter).to(parameter.device)
    return loss[0]


def not_run(reason: WorldError) -> int:
    """Tell that this can't run here, and why. Returns the exit status."""
    print(f"not run: {reason}", file=sys.stderr)
    probe.not_run(str(reason))
    return NOT_RUN


def shared(device_mesh: xs.Mesh | None) -> Callable[[Tensor], Tensor]:
    """What spreads the rows of a batch over a mesh; where there is none, what leaves it as it is."""

    def spread(batch: Tensor) -> Tensor:
        if device_mesh is not None:
            xs.mark_sharding(batch, device_mesh, ("data", *[None] * (batch.dim() - 1)))
        return batch

    return spread
