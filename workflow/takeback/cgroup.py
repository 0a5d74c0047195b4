"""Control groups with a limit of memory, for one run: made at the root, named after their supervisor, removed with it.

Version 1 (a hierarchy of its own for memory) and version 2 differ in the names of a few files: kernel documentation,
admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

NAME = "takeback"
ROOT = Path("/sys/fs/cgroup")
#: By version: in use, limit, limit with swap (its value for "no swap" is the limit itself in 1, 0 in 2), counters.
FILES = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
    2: ("memory.current", "memory.max", "memory.swap.max", "memory.events"),
}
PATIENCE = 5.0  # s for the last process to leave a group


class Group:
    """A control group with the ranks that were put into it.

    Args:
        name: of its folder, after ``takeback-PID``.
    """

    def __init__(self, name: str) -> None:
        self.version = 2 if (ROOT / "cgroup.controllers").exists() else 1
        self.folder = (ROOT if self.version == 2 else ROOT / "memory") / f"{NAME}-{os.getpid()}-{name}"
        self.usage, self.limit, self.swap, self.counters = (self.folder / file for file in FILES[self.version])
        self.folder.mkdir()

    def add(self, pid: int) -> None:
        """Put a process in; what it allocates from now on is counted here."""
        (self.folder / "cgroup.procs").write_text(f"{pid}\n")

    def leave(self, number: int) -> None:
        """Allow ``number`` bytes more than are in use, and no swap."""
        limit = int(self.usage.read_text()) + number
        self.limit.write_text(f"{limit}\n")
        if self.swap.exists():
            self.swap.write_text(f"{limit if self.version == 1 else 0}\n")

    @property
    def killed(self) -> int:
        """How many processes of this group the kernel has killed for want of memory."""
        lines = dict(line.split() for line in self.counters.read_text().splitlines())
        return int(lines["oom_kill"])

    def remove(self) -> None:
        """Remove it; a process that is about to end is waited for."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def unavailable() -> str | None:
    """Why there can be no limit of memory here, or None: one is made and removed."""
    try:
        group = Group("try")
    except OSError as error:
        return f"no control group can be made: {error.strerror} ({error.filename})"
    try:
        if not group.limit.exists():
            return f"control groups have no limit of memory here: no {group.limit.name}"
    finally:
        group.remove()
    return None


def stale() -> list[Path]:
    """Groups of supervisors that have ended without removing them: killed, with all their ranks."""
    found = [*ROOT.glob(f"{NAME}-*"), *(ROOT / "memory").glob(f"{NAME}-*")]
    return [path for path in found if not Path(f"/proc/{path.name.split('-')[1]}").exists()]


def remove_stale() -> None:
    """Remove those; nobody is in them any more."""
    for path in stale():
        with contextlib.suppress(OSError):  # somebody else has just done so, or a rank is still ending
            path.rmdir()
