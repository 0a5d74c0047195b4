"""The victim's network link goes down: it lives on and can't be reached. The others keep their links.

Each rank is a host in a network namespace of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from takeback import network
from takeback.faults import Injection

ENDS_BY = []
PROVES = {"answered_before": True, "link": "down", "answers": False}
surround = network.surround
unavailable = network.unavailable


def strike(injection: Injection) -> Iterator[float]:
    """Cut every victim off, and let it go on."""
    injection.around.cut(injection)
    injection.let_go()
    yield 0.0  # the strike is told now: a packet without an answer takes its time
    injection.around.ask(injection)
