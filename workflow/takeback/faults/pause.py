"""SIGSTOP, some seconds, SIGCONT: the straggler. Of a rank that writes a checkpoint: the slow storage."""

from __future__ import annotations

from collections.abc import Iterator

from takeback.faults import Injection

PARAMETERS = {"seconds": 1.0}
ENDS_BY = []
PROVES = {"state": "stopped"}


def strike(injection: Injection) -> Iterator[float]:
    """Stop every victim, and let them go on after ``seconds``."""
    injection.seen["state"] = "stopped" if injection.stop() else "running"
    yield injection.parameters["seconds"]
    injection.let_go()
