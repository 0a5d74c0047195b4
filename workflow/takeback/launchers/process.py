"""What the kernel knows of processes: bound lives, orphans, states."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from takeback.errors import TakebackError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def die_with_parent(parent: int) -> None:
    """In a new child: be killed when ``parent`` ends, however it ends (prctl(2), PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none is lost from sight (prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descriptor_of_parent(parent: int) -> int:
    """A descriptor that becomes readable when the parent process has ended, however it ends (pidfd_open(2)).

    Raises:
        SystemExit: it has ended already.
    """
    descriptor = os.pidfd_open(parent) if os.getppid() == parent else None
    if descriptor is None or os.getppid() != parent:  # its number may be another's by now
        sys.exit(f"takeback: process {parent}, which asked for this run, has ended")
    return descriptor


def guarded(work: Callable[[Sequence[int]], None], bound: Sequence[int]) -> None:
    """Do ``work(bound)`` in a child, and kill all that it leaves, also when it is killed itself.

    Whoever is killed can't clean up: parent and child each do it for the other. Needed where processes are started by
    others than us, which do not ask to be killed with their parent.

    Raises:
        SystemExit: with the child's status, if it failed.
    """
    adopt_orphans()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        status = 70  # EX_SOFTWARE
        try:
            own = descriptor_of_parent(parent)
            adopt_orphans()
            work([own, *bound])
            status = 0
        except SystemExit as end:
            print(end.code, file=sys.stderr)
        except TakebackError as error:
            print(f"takeback: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            end_descendants()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    try:
        _, status = os.waitpid(child, 0)
    finally:
        end_descendants()
    if status:
        sys.exit(f"takeback: the supervisor of the launcher ended with {os.waitstatus_to_exitcode(status)}")


@contextlib.contextmanager
def told_of_children() -> Iterator[int]:
    """A descriptor that becomes readable whenever a child stops or ends (SIGCHLD, signal(7)); main thread only."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGCHLD, handler)
        os.close(reading)
        os.close(writing)


def end_descendants() -> int:
    """Kill every process below this one, workers of killed ranks included; returns how many there were."""
    ended = 0
    while children := psutil.Process().children(recursive=True):
        for child in children:
            try:
                child.kill()
                ended += 1
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(children)
    return ended


def is_stopped(pid: int) -> bool:
    """Whether the process is there and stopped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def is_there(pid: int) -> bool:
    """Whether the process has not ended."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def wait_until_stopped(pid: int, deadline: float | None = None) -> bool:
    """Wait until the process is stopped; False if it ends instead, or the deadline (10 s by default) passes."""
    if deadline is None:
        deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            status = psutil.Process(pid).status()
        except psutil.NoSuchProcess:
            return False
        if status == psutil.STATUS_STOPPED:
            return True
        if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        os.sched_yield()
    return False


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal waits for the process, which is stopped (proc_pid_status(5), ShdPnd)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)
