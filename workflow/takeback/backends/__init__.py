"""Backends: how ranks talk, and on what device. Adding one is adding one file here.

Each module has the same five functions and two constants, and imports torch inside the functions only:

``environment(world) -> dict[str, str]``
    Variables that supervisor and ranks need before torch is used.
``unavailable(world) -> str | None``
    Why ``world`` ranks can't run on this machine, or None. Asked in the supervisor before
    it forks, so it must not initialise a device.
``DEVICE: str | None``
    A file that is there where the machine has such devices, for those who plan runs without torch.
``ENVIRONMENT: str | None``
    Name of the file ``envs/NAME.txt`` in whose environment its runs take place, where it can't share that of the suite
    (:mod:`takeback.environments`); supervisor and ranks then run there.
``device(local_rank) -> str``
    The torch device of a rank.
``setup(local_rank) -> None``
    In the rank, before its first tensor: choose the device, ask for deterministic kernels.
``describe() -> dict``
    In the rank: the bridge (backend and its version), the device, the flags in force.
``processes(world) -> int``, if a process has several devices
    How many processes hold the devices of a world; else each has one. Only the launcher ``local`` starts these.
``preload() -> None``, if ranks need other imports than those of ``launchers.local``
    Import them where ranks are forked. Must start no device.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any


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


def processes(name: str, world: int) -> int:
    """How many processes hold the devices of a world of the backend called ``name``."""
    many = getattr(get(name), "processes", None)
    return many(world) if many else world


def environment(spec: Mapping[str, Any]) -> dict[str, str]:
    """Variables that supervisor and ranks of a leg need before torch is used."""
    return get(spec["backend"]).environment(spec["world"])


def environments() -> set[str]:
    """Names of the environments of their own in which runs of some backend take place."""
    return {get(name).ENVIRONMENT for name in names()} - {None}
