"""SIGTERM, a grace window, SIGKILL: how spot machines and schedulers take a process back.

A trainer may save and leave within the window; what is still there at its end is killed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

from takeback.faults import Injection
from takeback.launchers.process import wait_until_stopped

PARAMETERS = {"grace": 5.0}  # s
ENDS_BY = [{"signal": 15}, {"signal": 9}, {"status": 0}, {"status": 143}]
PROVES = {"pending": "SIGTERM"}


def strike(injection: Injection) -> Iterator[float]:
    """Give every victim notice, and kill after ``grace`` seconds those that are still there."""
    # All are stopped for it: one notice at one instant, and the kernel can be seen to hold it for each.
    injection.send(signal.SIGSTOP)
    for victim in injection.victims:
        wait_until_stopped(victim.pid)
    injection.send(signal.SIGTERM)
    pending = all(victim.has_pending(signal.SIGTERM) for victim in injection.victims)
    injection.seen["pending"] = "SIGTERM" if pending else "nothing"
    injection.let_go()
    yield injection.parameters["grace"]
    injection.send(signal.SIGKILL)
