"""What Slurm's daemons say in their logs: allocations and requeues of a job, starts and ends of its tasks, signals.

The lines are those of Slurm 22.05 with ``SlurmdDebug=verbose``: src/slurmctld/job_mgr.c, node_scheduler.c,
src/slurmd/slurmstepd/mgr.c, src/plugins/proctrack/linuxproc. Their clock is that of the wall.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+)\] (.*)")
_STARTED = re.compile(r"task (\d+) \((\d+)\) started")
_ENDED = re.compile(r"task \d+ \((\d+)\) exited(?: with exit code (\d+)|\. Killed by signal (\d+))")
_SIGNAL = re.compile(r"Sending signal (?:9|15) to pid (\d+) ")
_ALLOCATED = re.compile(r"(?:_start_job: Started|Allocate) JobId=(\d+) ")
_TAKEN = re.compile(r"preempted JobId=(\d+) |requeue job JobId=(\d+) |Requeuing JobId=(\d+)$")


@dataclass
class Task:
    """One task of a job's step 0: a rank.

    Attributes:
        began, ended: Unix times.
        code: how it ended: its status, or a signal as a number below 0.
        signalled: whether Slurm has told it to go.
    """

    pid: int
    rank: int
    node: int
    began: float
    ended: float | None = None
    code: int | None = None
    signalled: bool = False


@dataclass
class Account:
    """What slurmctld said of one job.

    Attributes:
        allocated: Unix times at which it was given nodes.
        taken: Unix times at which it was taken off them, and the line.
    """

    allocated: list[float] = field(default_factory=list)
    taken: list[tuple[float, str]] = field(default_factory=list)


def tasks(path: Path, job: str, node: int) -> list[Task]:
    """The tasks of a job on one node, from the log of its slurmd, in the order of their start."""
    found: dict[int, Task] = {}
    for when, text in _lines(path):
        step, _, words = text.partition("] ")
        if step != f"[{job}.0":
            continue
        if started := _STARTED.search(words):
            found[int(started[2])] = Task(int(started[2]), int(started[1]), node, when)
        elif (ended := _ENDED.search(words)) and (task := found.get(int(ended[1]))):
            task.ended, task.code = when, int(ended[2]) if ended[2] else -int(ended[3])
        elif (signal := _SIGNAL.search(words)) and (task := found.get(int(signal[1]))):
            task.signalled = True
    return list(found.values())


def account(path: Path, job: str) -> Account:
    """What the log of slurmctld tells of a job."""
    found = Account()
    for when, text in _lines(path):
        if (given := _ALLOCATED.search(text)) and given[1] == job:
            found.allocated.append(when)
        elif (taken := _TAKEN.search(text)) and job in taken.groups():
            found.taken.append((when, text))
    return found


def _lines(path: Path) -> Iterator[tuple[float, str]]:
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        if found := _LINE.match(line):
            yield datetime.fromisoformat(found[1]).astimezone().timestamp(), found[2]
