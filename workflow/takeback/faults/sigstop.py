"""SIGSTOP: the process is there and does nothing. For ever, or for some seconds: the straggler is ``pause``."""

from __future__ import annotations

from takeback.faults import Injection

ENDS_BY = [{"signal": 9, "by": "supervisor"}]
PROVES = {"state": "stopped"}


def strike(injection: Injection) -> None:
    """Stop every victim; a victim that holds itself stays where it is."""
    injection.seen["state"] = "stopped" if injection.stop() else "running"
