"""gloo: ranks on CPU, one intra-op thread each unless the leg says otherwise: two threads give other bits than one."""

from __future__ import annotations

import os
from typing import Any

DEVICE = None
ENVIRONMENT = None


def environment(world: int) -> dict[str, str]:
    return {}


def unavailable(world: int) -> str | None:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        return "this torch is built without gloo"
    return None


def device(local_rank: int) -> str:
    return "cpu"


def setup(local_rank: int) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    # As use_deterministic_algorithms(True), which imports the compiler besides: a second of each cold start.
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # finds bugs in kernels, at every allocation


def describe() -> dict[str, Any]:
    """gloo has no version of its own: it is the one inside this torch."""
    import torch

    return {
        "backend": "gloo",
        "version": f"inside torch {torch.__version__} ({torch.version.git_version[:12]})",
        "device": "cpu",
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
