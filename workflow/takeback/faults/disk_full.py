"""The disk with the checkpoints is full: of a write, a part fits, and the next one is ENOSPC."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from takeback import storage
from takeback.faults import Injection

PARAMETERS = {"free": 4096}  # bytes
ENDS_BY = []
PROVES = {"errno": "ENOSPC"}
unavailable = storage.no_mounts


def surround(fault: dict[str, Any], folder: Path, world: int) -> AbstractContextManager[storage.Disk]:
    """A small file system in memory."""
    return storage.disk(folder, in_memory=True)


def strike(injection: Injection) -> None:
    """Leave ``free`` bytes, and let every victim go on."""
    injection.around.fill(injection.parameters["free"])
    injection.seen["free"] = injection.around.free()
    injection.seen["errno"] = injection.around.errno_of_a_write()
    injection.let_go()
