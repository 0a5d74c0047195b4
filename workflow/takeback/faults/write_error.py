"""The disk with the checkpoints fails: every later write is EIO, as of a drive or a volume that went away."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from takeback import storage
from takeback.faults import Injection

ENDS_BY = []
OF_FILES = True
PROVES = {"errno": "EIO"}
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, linux/ext4.h
NO_LOG_FLUSH = 2
unavailable = storage.no_disk


def surround(fault: dict[str, Any], folder: Path, world: int) -> AbstractContextManager[storage.Disk]:
    """An ext4 of its own."""
    return storage.disk(folder)


def strike(injection: Injection) -> None:
    """Shut the file system down, and let every victim go on."""
    folder = os.open(injection.checkpoints, os.O_RDONLY)
    fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    os.close(folder)
    injection.seen["errno"] = injection.around.errno_of_a_write(1)
    injection.let_go()
