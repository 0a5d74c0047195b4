"""How a file comes to a disk, so that it is there after the power was lost, and three ways in which it is not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

#: What each way does: write a temporary file and rename it, fsync the file, fsync the folder.
WAYS = {
    "whole": (True, True, True),
    "fsync_file": (True, True, False),  # the content is on disk; its new name may not be
    "rename": (True, False, False),  # protects a concurrent reader, not a restart after the host died
    "in_place": (False, False, False),  # what torch.save(state, path) does
}


@contextmanager
def create(
    path: Path, way: str, clock: Clock | None = None, written: Callable[[], None] | None = None
) -> Iterator[BinaryIO]:
    """A file to write, which has its name when all went well. Done ``whole``, there is the old file or the new after
    a crash, and never a part.

    Args:
        way: one of :data:`WAYS`.
        clock: is told the seconds that each part took: ``write``, ``fsync_file``, ``rename``, ``fsync_folder``.
        written: called when all is written, before the file has its name.

    Raises:
        OSError: it could not be written. A temporary file is gone again; in place, a part may be left.
    """
    by_rename, sync_file, sync_folder = WAYS[way]
    target = path.with_name(path.name + ".tmp") if by_rename else path
    clock = clock or Clock()
    try:
        with open(target, "wb") as file:
            yield file
            file.flush()
            clock("write")
            if sync_file:
                os.fsync(file.fileno())
                clock("fsync_file")
        if written:
            written()
            clock.skip()
        if by_rename:
            os.replace(target, path)
            clock("rename")
    except OSError:
        if by_rename:
            target.unlink(missing_ok=True)
        raise
    if sync_folder:
        sync(path.parent)
        clock("fsync_folder")


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

    def skip(self) -> None:
        """What was done since the last call does not count."""
        self.last = time.perf_counter()
