"""Who takes part, counted before anything is trusted: devices of a mesh, or processes.

A world that is smaller than it was asked for trains as well, and resumes as well: nothing else would tell.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor


class WorldError(RuntimeError):
    """There are not the devices or ranks that were asked for: one line."""


def mesh(world: int) -> xs.Mesh:
    """One axis, ``data``, over ``world`` devices.

    Raises:
        WorldError: there are not as many, or a sum over them does not count them.
    """
    devices = xr.global_runtime_device_count()
    if devices != world:
        raise WorldError(f"{world} devices were asked for, PJRT has {devices} of kind {xr.device_type()}")
    found = xs.Mesh(np.arange(world), (world,), ("data",))
    ones = torch.ones(world).to(torch_xla.device())
    spread = xs.mark_sharding(ones, found, ("data",))
    shards = len(spread.local_shards)
    check(world, shards, int(ones.sum()))
    return found


def ranks(world: int, backend: str) -> None:
    """Join a process group: ``gloo``, on the host, or the bridge's own, ``xla``.

    Raises:
        WorldError: the group is not one of ``world`` ranks.
    """
    if backend == "xla":
        import torch_xla.distributed.xla_backend
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


def shared(device_mesh: xs.Mesh | None) -> Callable[[Tensor], Tensor]:
    """What spreads the rows of a batch over a mesh."""

    def spread(batch: Tensor) -> Tensor:
        if device_mesh is not None:
            xs.mark_sharding(batch, device_mesh, ("data", *[None] * (batch.dim() - 1)))
        return batch

    return spread
