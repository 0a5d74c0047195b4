"""Backends: how ranks talk, and on what device. Adding one is adding one file here.

Each module has the same five functions and a constant, and imports torch inside the functions only:

``environment() -> dict[str, str]``
    Variables that supervisor and ranks need before torch is used.
``unavailable(world) -> str | None``
    Why ``world`` ranks can't run on this machine, or None. Asked in the supervisor before
    it forks, so it must not initialise a device.
``DEVICE: str | None``
    A file that is there where the machine has such devices, for those who plan runs without torch.
``device(local_rank) -> str``
    The torch device of a rank.
``setup(local_rank) -> None``
    In the rank, before its first tensor: choose the device, ask for deterministic kernels.
``describe() -> dict``
    In the rank: the bridge (backend and its version), the device, the flags in force.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names() -> list[str]:
    """The backends that there are: the modules of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> ModuleType:
    """The backend called ``name``.

    Raises:
        ValueError: there is none of that name; the message lists those that there are.
    """
    if name not in names():
        raise ValueError(f"backend: {name!r} is unknown; there are: {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")
