"""What runs have left on this machine. Everything that Takeback makes there carries its name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from takeback import cgroup

NAME = "takeback"
_OWNER = re.compile(rf"/{NAME}-(?:slurm|ssh)-(\d+)-")  # in the name of a folder: whose it is


def leftovers() -> list[str]:
    """One line a thing: processes, mounts, network namespaces, cgroups, sockets, shared memory, temporary files.

    What belongs to a workflow that is still running is not left over, and not listed.
    """
    return [*processes(), *mounts(), *namespaces(), *cgroups(), *sockets(), *files()]


def processes() -> Iterator[str]:
    """Ours by their command or environment, with no Snakemake above them."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        try:
            words, where = process.cmdline(), process.cwd()
            ours = (NAME in words and {"leg", "pool"} & set(words)) or "TAKEBACK_RECORDS" in process.environ()
            ours = ours or {f"{NAME}.objectstore", f"{NAME}.launchers.on_host"} & set(words)
            ours = ours or any(is_orphaned(text) for text in (*words, where))
            if ours and process.pid not in mine and not any(is_workflow(parent) for parent in process.parents()):
                yield f"process {process.pid} in {where}: {' '.join(words)[:120]}"
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue


def is_orphaned(text: str) -> bool:
    """Whether a text names the folder of a Slurm or of hosts whose process, by the pid in its name, has ended."""
    owner = _OWNER.search(text)
    return owner is not None and not psutil.pid_exists(int(owner[1]))


def is_workflow(process: psutil.Process) -> bool:
    """Whether a process is a running Snakemake."""
    return any("snakemake" in word for word in process.cmdline())


def mounts() -> Iterator[str]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, where, *_ = line.split()
        if NAME in Path(where).name or NAME in Path(device).name:
            yield f"mount {where} of {device}"


def namespaces() -> Iterator[str]:
    yield from (f"network namespace {path.name}" for path in Path("/run/netns").glob(f"{NAME}*"))


def cgroups() -> Iterator[str]:
    """Those of supervisors that have ended."""
    yield from (f"cgroup {path} of a process that has ended" for path in cgroup.stale())


def remove() -> None:
    """Remove what neither the kernel nor a later run does away with; the rest is only listed."""
    cgroup.remove_stale()


def sockets() -> Iterator[str]:
    """Sockets of a pool whose workflow, by the pid in their name, has ended."""
    names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    for name in sorted(names):
        if (owner := re.match(rf"@{NAME}-(\d+)-", name)) and not psutil.pid_exists(int(owner[1])):
            yield f"socket {name}"


def files() -> Iterator[str]:
    for folder in (Path("/tmp"), Path("/dev/shm")):
        found = map(str, folder.glob(f"{NAME}-*"))
        yield from (f"file {path}" for path in found if not _OWNER.search(path) or is_orphaned(path))
    for path in Path("/dev/shm").glob("torch_*"):
        if (owner := re.match(r"torch_(\d+)_", path.name)) and not psutil.pid_exists(int(owner[1])):
            yield f"shared memory {path} of process {owner[1]}, which has ended"
