"""The machine loses its power: all ranks are gone, and of the checkpoints only what the disk had is there.

A copy of the disk's image, taken while it is mounted, is what a disk holds when the power goes: what was in the
page cache alone, and what the journal had not yet committed, is not in it.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from takeback import storage
from takeback.faults import Injection

PARAMETERS = {"journal": "idle"}
CHOICES = {"journal": ["idle", "committed"]}
OF_FILES = True
RANKS = "all"
ENDS_BY = [{"signal": 9}]
PROVES = {"unclean": True}
unavailable = storage.no_disk


def surround(fault: dict[str, Any], folder: Path, world: int) -> AbstractContextManager[storage.Disk]:
    """An ext4 of its own, whose journal commits only what is synced."""
    return storage.disk(folder)


def strike(injection: Injection) -> None:
    """Stop all, copy the disk, kill all. With ``journal: committed`` somebody else's fsync came just before."""
    injection.stop()
    if injection.parameters["journal"] == "committed":
        sync_a_stranger(injection.checkpoints)
    disk = injection.around
    disk.found = disk.image.with_name("found.img")
    subprocess.run(["cp", "--sparse=always", disk.image, disk.found], check=True)
    injection.seen["unclean"] = is_unclean(disk.found)
    injection.seen["in_the_page_cache"] = {path.name: path.stat().st_size for path in injection.checkpoints.iterdir()}
    injection.send(signal.SIGKILL)


def sync_a_stranger(folder: Path) -> None:
    """What any other program on the machine does, or the journal itself every five seconds."""
    file = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    os.write(file, b"x")
    os.fsync(file)
    os.close(file)


def is_unclean(image: Path) -> bool:
    """Whether the journal must be replayed: it was in use (ext4, superblock, s_feature_incompat, RECOVER)."""
    with image.open("rb") as file:
        file.seek(1024 + 0x60)
        return bool(struct.unpack("<I", file.read(4))[0] & 0x4)
