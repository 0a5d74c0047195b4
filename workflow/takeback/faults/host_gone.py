"""The victim's host is gone, as at a loss of power: its link is down first, so that its end sends no packet to anybody.

Of a process that is killed on a host that lives the kernel closes the connections (FIN or RST), which the peers see at
once. Of a host that is gone they hear nothing. Each rank is a host in a network namespace of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

from takeback import network
from takeback.faults import Injection

ENDS_BY = [{"signal": 9}]
PROVES = {"answered_before": True, "link": "down", "answers": False}
surround = network.surround
unavailable = network.unavailable


def strike(injection: Injection) -> Iterator[float]:
    """Cut every victim off, then kill it."""
    injection.around.cut(injection)
    injection.send(signal.SIGKILL)
    yield 0.0  # the strike is told now: a packet without an answer takes its time
    injection.around.ask(injection)
