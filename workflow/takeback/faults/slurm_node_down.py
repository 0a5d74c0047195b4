"""A node of the job is set DOWN, as an operator does, or Slurm itself when the node has not answered (scontrol(1))."""

from __future__ import annotations

from collections.abc import Iterator

from takeback.faults import Injection

RANKS = "all"  # Slurm takes the others off their nodes too
NEEDS = "scheduler"
ENDS_BY = [{"signal": 15}, {"signal": 9}, {"status": 143}, {"status": 1}, {"known": "nobody"}]
PROVES = {"lost": True}


def strike(injection: Injection) -> Iterator[float]:
    """Set the last node of the job DOWN; victims that hold themselves go on when Slurm tells them to (SIGCONT)."""
    job = injection.launcher
    before = len(job.told("failure of node"))
    nodes = job.cluster.client("scontrol", "show", "hostnames", job.cluster.job(job.number)["NodeList"])
    name = nodes.split()[-1]
    job.cluster.client("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=fault")
    while not (lines := job.told("failure of node", after=before)):
        yield 0.2
    injection.seen |= {"lost": True, "node": name, "slurm": lines[-1]}
