"""An operator requeues the job: ``scontrol requeue`` (scontrol(1)). SIGTERM, and SIGKILL after KillWait."""

from __future__ import annotations

from collections.abc import Iterator

from takeback.faults import Injection

RANKS = "all"
NEEDS = "scheduler"
ENDS_BY = [{"signal": 15}, {"signal": 9}, {"status": 143}, {"status": 1}, {"known": "nobody"}]
PROVES = {"requeued": True}


def strike(injection: Injection) -> Iterator[float]:
    """Requeue; victims that hold themselves go on when Slurm tells them to (SIGCONT)."""
    job = injection.launcher
    before = len(job.told("Requeuing"))
    job.cluster.client("scontrol", "requeue", job.number)
    while not (lines := job.told("Requeuing", after=before)):
        yield 0.2
    injection.seen |= {"requeued": True, "slurm": lines[-1]}
