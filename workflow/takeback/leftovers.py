"""What runs have left on this machine. Everything that Takeback makes there carries its name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

NAME = "takeback"


def leftovers() -> list[str]:
    """One line a thing: processes, mounts, network namespaces, cgroups, sockets, shared memory, temporary files.

    A workflow that runs right now shows up here too; ask when none does.
    """
    return [*processes(), *mounts(), *namespaces(), *cgroups(), *sockets(), *files()]


def processes() -> Iterator[str]:
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        if process.pid in mine:
            continue
        try:
            words, where = process.cmdline(), process.cwd()
            ours = (NAME in words and "leg" in words) or "TAKEBACK_RECORDS" in process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
        if ours:
            yield f"process {process.pid} in {where}: {' '.join(words)[:120]}"


def mounts() -> Iterator[str]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, where, *_ = line.split()
        if NAME in Path(where).name or NAME in Path(device).name:
            yield f"mount {where} of {device}"


def namespaces() -> Iterator[str]:
    yield from (f"network namespace {path.name}" for path in Path("/run/netns").glob(f"{NAME}*"))


def cgroups() -> Iterator[str]:
    for folder, below, _ in os.walk("/sys/fs/cgroup"):
        yield from (f"cgroup {folder}/{name}" for name in below if name.startswith(NAME))


def sockets() -> Iterator[str]:
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        if NAME in (path := line.split()[-1]).lower():
            yield f"socket {path}"


def files() -> Iterator[str]:
    for folder in (Path("/tmp"), Path("/dev/shm")):
        yield from (f"file {path}" for path in folder.glob(f"{NAME}-*"))
    for path in Path("/dev/shm").glob("torch_*"):
        if (owner := re.match(r"torch_(\d+)_", path.name)) and not psutil.pid_exists(int(owner[1])):
            yield f"shared memory {path} of process {owner[1]}, which has ended"
