"""One strike on several hosts: who is told what, and after whose answer.

Each host hears of it by a message of its own, and no two are there at the same time. A victim that sees the end of
another ends by itself, and its own host comes too late. So where a fault kills, the victims on all hosts but the first
are stopped, then the first host strikes, then the others do. The first has the lowest rank, which no host stops long
before its end (:meth:`takeback.faults.Injection.kill`).
"""

from __future__ import annotations

import time
from typing import Any

from takeback.launchers.host import Host

PATIENCE = 5.0  # s for a host to answer: one whose link is gone must not keep the others from their strike


class Strike:
    """One fault as it comes to its hosts.

    Args:
        fault: its id.
        hosts: those that have victims, in the order of their ranks.
        kills: whether none of the victims may see the end of another.
    """

    def __init__(self, fault: str, hosts: list[Host], kills: bool) -> None:
        self.fault = fault
        first, others = hosts[:1], hosts[1:]
        in_turn = [("stop", others, "victims_stopped"), ("strike", first, "fault_fired"), ("strike", others, "")]
        #: What is still to be said, to whom, and the record with which each of them answers.
        self.orders = in_turn if kills and others else [("strike", hosts, "")]
        self.silent: list[Host] = []
        self.answer, self.until = "", 0.0  # s of the monotonic clock
        self.go_on()

    def heard(self, host: Host, record: dict[str, Any]) -> None:
        """A record of a host; it may be what is waited for."""
        if (record["kind"], record.get("fault")) == (self.answer, self.fault):
            self.silent = [one for one in self.silent if one is not host]
            self.go_on()

    def go_on(self) -> None:
        """Say what comes next, if all have answered that can, or their time is over."""
        while self.orders and (all(host.over for host in self.silent) or time.monotonic() > self.until):
            word, self.silent, self.answer = self.orders.pop(0)
            self.until = time.monotonic() + PATIENCE
            for host in self.silent:
                host.tell(**{word: self.fault})
