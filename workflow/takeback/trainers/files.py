"""How a file comes to a disk, so that it is there after the power was lost, and three ways in which it is not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

#: What each way does: write a temporary file and rename it, fsync the file, fsync the folder.
WAYS = {
    "whole": (True, True, True),
    "fsync_file": (True, True, False),  # the content is on disk; its new name may not be
    "rename": (True, False, False),  # protects a concurrent reader, not a restart after the host died
    "in_place": (False, False, False),  # what torch.save(state, path) does
}


def write(
    path: Path,
    data: bytes | memoryview,
    way: str,
    half: Callable[[], None] | None = None,
    written: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Put ``data`` under ``path``. Done ``whole``, there is the old file or the new after a crash, and never a part.

    Args:
        way: one of :data:`WAYS`.
        half: called when half of the bytes are written, if given.
        written: called when all are, before the file has its name.

    Returns:
        Seconds that each part took: ``write``, ``fsync_file``, ``rename``, ``fsync_folder``.

    Raises:
        OSError: it could not be written. A temporary file is gone again; in place, a part may be left.
    """
    by_rename, sync_file, sync_folder = WAYS[way]
    target = path.with_name(path.name + ".tmp") if by_rename else path
    clock = Clock()
    try:
        with open(target, "wb") as file:
            file.write(data[: len(data) // 2])
            if half:
                file.flush()
                half()
            file.write(data[len(data) // 2 :])
            file.flush()
            clock("write")
            if sync_file:
                os.fsync(file.fileno())
                clock("fsync_file")
        if written:
            written()
        if by_rename:
            clock("point")
            os.replace(target, path)
            clock("rename")
    except OSError:
        if by_rename:
            target.unlink(missing_ok=True)
        raise
    if sync_folder:
        sync(path.parent)
        clock("fsync_folder")
    return {part: seconds for part, seconds in clock.took.items() if part != "point"}


def sync(path: Path) -> None:
    """Bring what was written to a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Clock:
    """Seconds between its calls, by the name that each is given."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}
        self.last = time.perf_counter()

    def __call__(self, part: str) -> None:
        now = time.perf_counter()
        self.took[part], self.last = now - self.last, now
