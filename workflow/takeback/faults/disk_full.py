"""The disk with the checkpoints is full: of a write, a part fits, and the next one is ENOSPC."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from takeback import storage
from takeback.faults import Injection

PARAMETERS = {"free": 4096}  # bytes
OF_FILES = True
ENDS_BY = []
PROVES = {"errno": "ENOSPC"}
unavailable = storage.no_mounts


def surround(fault: dict[str, Any], folder: Path, world: int) -> AbstractContextManager[storage.Disk]:
    """A small file system in memory."""
    return storage.disk(folder, in_memory=True)


def strike(injection: Injection) -> None:
    """Leave ``free`` bytes, and let every victim go on."""
    disk, free = injection.around, injection.parameters["free"]
    disk.fill(free)
    injection.seen["free"] = disk.free()
    injection.seen["errno"] = disk.errno_of_a_write(free + 4096)
    injection.let_go()
