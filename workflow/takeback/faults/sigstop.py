"""SIGSTOP: the process is there and does nothing. For ever, or for some seconds: the straggler is ``pause``."""

from __future__ import annotations

import signal

from takeback.faults import Injection
from takeback.launchers.process import wait_until_stopped

ENDS_BY = [{"signal": 9, "by": "supervisor"}]
PROVES = {"state": "stopped"}


def strike(injection: Injection) -> None:
    """Stop every victim; a victim that holds itself stays where it is."""
    injection.send(signal.SIGSTOP)
    stopped = [wait_until_stopped(victim.pid) for victim in injection.victims]
    injection.seen["state"] = "stopped" if all(stopped) else "running"
