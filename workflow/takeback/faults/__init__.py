"""Faults: one small file each. Adding one is adding one file here.

A fault module has

``strike(victims) -> None``
    Strike each victim. Called when the first of them is held at the fault's point.
``ENDS_BY: dict``
    How a victim ends: ``{"signal": 9}``. It goes into the receipt, by which the exit is judged.

A fault never judges, and it writes nothing: the supervisor records what was done before and after.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Victim:
    """A rank, its process, and a pidfd: by its number alone one could strike a stranger who got it later."""

    rank: int
    pid: int
    descriptor: int


def get(kind: str) -> ModuleType:
    """The fault in ``takeback/faults/<kind>.py``."""
    return importlib.import_module(f"takeback.faults.{kind}")
