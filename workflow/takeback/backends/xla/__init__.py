"""xla: torch_xla on PJRT, one process that has all devices of a mesh (SPMD).

On CPU the devices are virtual, as many as asked for (``CPU_NUM_DEVICES``); elsewhere they are those that
``PJRT_DEVICE`` names. What a run does with them is in :mod:`takeback.backends.xla.train`, a trainer that speaks with
the suite through the probe alone.

Sources: https://docs.pytorch.org/xla/release/r2.9/, https://github.com/pytorch/xla/tree/v2.9.0
"""

from __future__ import annotations

import os
from typing import Any

DEVICE = None
ENVIRONMENT = "xla"


def processes(world: int) -> int:
    """One, whatever the size of the mesh."""
    return 1


def environment(world: int) -> dict[str, str]:
    return {
        "PJRT_DEVICE": os.environ.get("PJRT_DEVICE", "CPU"),
        "CPU_NUM_DEVICES": str(world),
        # Kernels that are used for a few steps took five times as long to make otherwise.
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "--xla_backend_optimization_level=0"),
        "TF_CPP_MIN_LOG_LEVEL": "3",  # else hundreds of lines on what is deprecated
    }


def preload() -> None:
    """Import all that a rank needs. Makes no PJRT client: its threads would be lost in a fork."""
    import torch.distributed.checkpoint  # noqa: F401
    import torch_xla.core.xla_model
    import torch_xla.debug.metrics
    import torch_xla.distributed.spmd
    import torch_xla.experimental.distributed_checkpoint
    import torch_xla.runtime  # noqa: F401


def unavailable(world: int) -> str | None:
    """Whether there is a PJRT device is told by the ranks: who asks has a client, and can't be forked any more."""
    try:
        import torch
        import torch_xla
    except (ImportError, OSError) as error:
        return f"torch_xla can't be imported: {' '.join(str(error).split())}"
    of_torch, of_bridge = (version.split("+")[0] for version in (torch.__version__, torch_xla.__version__))
    if of_torch.split(".")[:2] != of_bridge.split(".")[:2]:
        return f"torch {of_torch} is beside torch_xla {of_bridge}, which needs torch {of_bridge}"
    return None


def device(local_rank: int) -> str:
    return "xla"


def setup(local_rank: int) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def describe() -> dict[str, Any]:
    """Asks for the devices, and so makes the client."""
    import torch
    import torch_xla
    import torch_xla.runtime as xr

    return {
        "backend": "xla",
        "version": f"torch_xla {torch_xla.__version__}, PJRT {xr.device_type()}",
        "device": xr.device_type().lower(),
        "devices": xr.global_runtime_device_count(),
        "processes": xr.process_count(),
        "spmd": xr.is_spmd(),
        "threads": torch.get_num_threads(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "LIBTPU_INIT_ARGS": os.environ.get("LIBTPU_INIT_ARGS", ""),
    }
