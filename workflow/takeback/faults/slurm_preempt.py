"""Slurm takes the machine back: a job of a partition with priority preempts this one.

What Slurm then does is its own affair: SIGTERM to all processes of the job (PreemptMode, GraceTime), SIGKILL after
KillWait, and a requeue, if it is told so. Source: https://slurm.schedmd.com/preempt.html.
"""

from __future__ import annotations

from collections.abc import Iterator

from takeback import slurm
from takeback.faults import Injection

PARAMETERS = {"seconds": 1.0}  # s that the other job needs the machine
RANKS = "all"
NEEDS = "scheduler"
ENDS_BY = slurm.ENDS_BY
PROVES = {"preempted": True}


def strike(injection: Injection) -> Iterator[float]:
    """Submit a job that needs all nodes; victims that hold themselves go on when Slurm tells them to (SIGCONT)."""
    job = injection.launcher
    all_of_it = ["-p", slurm.HIGH, "-N", str(len(job.cluster.names)), "--exclusive", "--output=/dev/null"]
    sleep = ["--wrap", f"sleep {injection.parameters['seconds']}"]
    line = yield from job.asked_to_go("preempted", "sbatch", *all_of_it, *sleep)
    injection.seen |= {"preempted": True, "slurm": line}
