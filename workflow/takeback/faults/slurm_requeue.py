"""An operator requeues the job: ``scontrol requeue`` (scontrol(1)). SIGTERM, and SIGKILL after KillWait."""

from __future__ import annotations

from collections.abc import Iterator

from takeback import slurm
from takeback.faults import Injection

RANKS = "all"
NEEDS = "scheduler"
ENDS_BY = slurm.ENDS_BY
PROVES = {"requeued": True}


def strike(injection: Injection) -> Iterator[float]:
    """Requeue; victims that hold themselves go on when Slurm tells them to (SIGCONT)."""
    job = injection.launcher
    line = yield from job.asked_to_go("Requeuing", "scontrol", "requeue", job.number)
    injection.seen |= {"requeued": True, "slurm": line}
