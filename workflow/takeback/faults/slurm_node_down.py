"""A node of the job is set DOWN, as an operator does, or Slurm itself when the node has not answered (scontrol(1))."""

from __future__ import annotations

from collections.abc import Iterator

from takeback import slurm
from takeback.faults import Injection

RANKS = "all"  # Slurm takes the others off their nodes too
NEEDS = "scheduler"
ENDS_BY = slurm.ENDS_BY
PROVES = {"lost": True}


def strike(injection: Injection) -> Iterator[float]:
    """Set the last node of the job DOWN; victims that hold themselves go on when Slurm tells them to (SIGCONT)."""
    job = injection.launcher
    nodes = job.cluster.client("scontrol", "show", "hostnames", job.cluster.job(job.number)["NodeList"])
    name = nodes.split()[-1]
    down = ["scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=fault"]
    line = yield from job.asked_to_go("failure of node", *down)
    injection.seen |= {"lost": True, "node": name, "slurm": line}
