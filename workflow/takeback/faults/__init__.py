"""Faults: one small file each, with one function ``strike``.

A fault is handed its victims when the first of them is held at the named point, strikes, and
says whether the held one may go on. It never judges, and it writes nothing: the supervisor
records what was done before and after.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Victim:
    """A rank and its process."""

    rank: int
    pid: int


def get(kind: str) -> Callable[[Sequence[Victim]], None]:
    """The ``strike`` of the fault in ``takeback/faults/<kind>.py``."""
    return importlib.import_module(f"takeback.faults.{kind.replace('-', '_')}").strike
