"""Every packet that leaves the victim's host is late by some milliseconds from now on: a slow link.

Each rank is a host in a network namespace of its own; the queue is ``tc``'s netem (tc-netem(8)).
"""

from __future__ import annotations

from takeback import network
from takeback.faults import Injection

PARAMETERS = {"milliseconds": 20.0}
ENDS_BY = []
PROVES = {"queue": "netem", "slower": True}
surround = network.surround


def strike(injection: Injection) -> None:
    """Put the delay on the link of every victim, and let it go on."""
    injection.around.delay(injection, injection.parameters["milliseconds"])
    injection.let_go()


def unavailable() -> str | None:
    """No hosts, or no netem in this kernel."""
    return network.unavailable() or network.no_netem()
