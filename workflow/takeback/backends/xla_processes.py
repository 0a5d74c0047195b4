"""xla_processes: one process a rank, each with an XLA device of its own; gradients meet on the host, over gloo.

What the bridge offers instead, a process group ``xla``, has no ranks on CPU: every process is rank 0 of a world of 1,
and an all-reduce returns its own value, without an error (torch_xla 2.9.0). A run counts before it trusts
(:func:`takeback.backends.xla.world.ranks`).
"""

from __future__ import annotations

from takeback.backends import xla
from takeback.backends.xla import DEVICE, ENVIRONMENT, describe, device, preload, setup, unavailable

__all__ = ["DEVICE", "ENVIRONMENT", "describe", "device", "environment", "preload", "setup", "unavailable"]


def environment(world: int) -> dict[str, str]:
    return xla.environment(1)
