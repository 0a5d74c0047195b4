"""SIGSTOP, some seconds, SIGCONT: the straggler. Of a rank that writes a checkpoint: the slow storage."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from takeback.faults import Injection
from takeback.launchers.process import wait_until_stopped

PARAMETERS = {"seconds": 1.0}
ENDS_BY = []
PROVES = {"state": "stopped"}


def strike(injection: Injection) -> Iterator[float]:
    """Stop every victim, and let them go on after ``seconds``."""
    injection.send(signal.SIGSTOP)
    stopped = [wait_until_stopped(victim.pid) for victim in injection.victims]
    injection.seen["state"] = "stopped" if all(stopped) else "running"
    yield injection.parameters["seconds"]
    injection.let_go()
