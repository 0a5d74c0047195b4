"""SIGTERM, a grace window, SIGKILL: how spot machines and schedulers take a process back.

A trainer may save and leave within the window; what is still there at its end is killed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

from takeback.faults import Injection

PARAMETERS = {"grace": 5.0}  # s
ENDS_BY = [{"signal": 15}, {"signal": 9}, {"status": 0}, {"status": 143}]


def strike(injection: Injection) -> Iterator[float]:
    """Give every victim notice, and kill after ``grace`` seconds those that are still there."""
    injection.send(signal.SIGTERM)
    injection.let_go()
    yield injection.parameters["grace"]
    injection.send(signal.SIGKILL)
