"""SIGTERM, a grace window, SIGKILL: how spot machines and schedulers take a process back.

A trainer may save and leave within the window; what is still there at its end is killed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

from takeback.faults import Injection
from takeback.launchers.process import is_pending

PARAMETERS = {"grace": 5.0}  # s
PROVES = {"sigterm": "pending"}
ENDS_BY = [{"signal": 15}, {"signal": 9}, {"status": 0}, {"status": 143}]


def strike(injection: Injection) -> Iterator[float]:
    """Give every victim notice, and kill after ``grace`` seconds those that are still there."""
    stopped = injection.stop()  # so that the signal is seen before it is delivered: any end may follow from it
    injection.send(signal.SIGTERM)
    pending = [is_pending(victim.pid, signal.SIGTERM) for victim in injection.victims]
    injection.seen["sigterm"] = "pending" if stopped and all(pending) else "not sent"
    injection.let_go()
    yield injection.parameters["grace"]
    injection.kill()
