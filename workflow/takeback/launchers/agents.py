"""The agents of torchrun and the workers that they start: found, watched to their end, and what is known of it."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takeback.faults import Victim

_INFO = struct.Struct("=Q52xi")  # pidfd_info: what is asked and told, eleven fields for others, exit_code
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(0xFF, 11, struct pidfd_info)


@dataclass
class Process:
    """An agent (``rank`` is None) or a worker.

    Attributes:
        victim: the process and its pidfd.
        world: of the group that a worker was started for.
        restarts: its agent's count when it was started.
        command: its words.
        began, ended: monotonic seconds; when it was seen first, and when it had ended.
        status, signal: how it ended, as far as ``known``: by ``kernel``, or ``nobody``.
        by_us: whether it was ended by the suite for want of time.
    """

    victim: Victim
    began: float
    world: int = 0
    restarts: int = 0
    command: tuple[str, ...] = ()
    ended: float | None = None
    status: int | None = None
    signal: int | None = None
    known: str = "nobody"
    by_us: bool = False

    @property
    def pid(self) -> int:
        return self.victim.pid

    @property
    def rank(self) -> int | None:
        return self.victim.rank

    @property
    def node(self) -> int:
        return self.victim.node

    def how(self) -> dict[str, Any]:
        return {"status": self.status, "signal": self.signal, "known": self.known}

    def told(self, code: int | None) -> None:
        """Take an exit code as ``subprocess`` has it: below 0 it is a signal."""
        if code is not None:
            self.status, self.signal = (code, None) if code >= 0 else (None, -code)

    def end(self, when: float) -> None:
        """It had ended by then, as its pidfd says: find out how, if its parent has not taken the answer away."""
        self.ended = when
        code = exit_code(self.victim)
        if code is not None:
            self.told(code)
            self.known = "kernel"


def exit_code(ended: Victim) -> int | None:
    """How a process ended: its status, or a signal as a number below 0; None where only its parent was told.

    Of a child of ours the kernel tells (waitpid); of another's as long as it is a zombie (proc_pid_stat(5), field 52),
    and since Linux 6.15 also when its parent has reaped it, whoever holds a pidfd (linux/pidfd.h, PIDFD_INFO_EXIT).
    """
    with suppress(ChildProcessError):
        return os.waitstatus_to_exitcode(os.waitpid(ended.pid, 0)[1])
    with suppress(OSError):
        fields = Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return os.waitstatus_to_exitcode(int(fields[-1]))
    with suppress(OSError):
        told, status = _INFO.unpack(fcntl.ioctl(ended.descriptor, _PIDFD_GET_INFO, _INFO.pack(_PIDFD_INFO_EXIT, 0)))
        if told & _PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
    return None


def workers_of(agent: int, known: Set[int], node: int) -> list[Process]:
    """Children of an agent on a node that are workers, and not known yet."""
    return [worker for pid in children_of(agent) - known if (worker := _worker(pid, node))]


def children_of(pid: int) -> set[int]:
    """The children of a process (proc_pid_task(5), ``children``)."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(word) for word in path.read_text().split()}
    return found


def _worker(pid: int, node: int) -> Process | None:
    """None until it has its own environment: between fork and exec it has the agent's."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        words = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
        variables = dict(word.partition("=")[::2] for word in words)
        rank, world, restarts = (int(variables[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    except (OSError, KeyError, ValueError):
        os.close(descriptor)
        return None
    return Process(Victim(rank, pid, descriptor, node), time.monotonic(), world, restarts, tuple(command))


def end(processes: list[Process]) -> None:
    """Kill what is still there."""
    for process in processes:
        if process.ended is None:
            process.by_us = True
            process.victim.send(signal.SIGKILL)
