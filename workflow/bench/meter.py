"""Wall and CPU seconds of a command, with those of whatever it leaves running and of all that these start."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import psutil
from takeback.launchers import process


@dataclass(frozen=True)
class Cost:
    """``wall`` is until the command ended; ``cpu`` is user and system time of it and of all below it."""

    wall: float
    cpu: float
    status: int


class Metered:
    """A command that has been started; ``options`` are those of :class:`subprocess.Popen`."""

    def __init__(self, words: list[str], **options: Any) -> None:
        process.adopt_orphans()  # a warm pool outlives its workflow by a moment: its time counts too
        self.others = {child.pid for child in psutil.Process().children()}
        self.started = time.perf_counter()
        self.command = subprocess.Popen(words, **options)

    def cost(self) -> Cost:
        """Wait for it and for what it has left running."""
        cpu, self.command.returncode = reap(self.command.pid)
        wall = time.perf_counter() - self.started
        orphans = {child.pid for child in psutil.Process().children()} - self.others
        return Cost(wall, cpu + sum(reap(pid)[0] for pid in orphans), self.command.returncode)


def reap(pid: int) -> tuple[float, int]:
    """CPU seconds of a child and of its own reaped children, and its exit status (wait4(2))."""
    _, status, usage = os.wait4(pid, 0)
    return usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status)
