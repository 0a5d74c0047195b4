"""SIGKILL: the process is gone between two instructions; nothing of its own runs any more.

With all ranks as victims: the machine is gone, and its file system lives.
"""

from __future__ import annotations

from takeback.faults import Injection

ENDS_BY = [{"signal": 9}]
KILLS = True


def strike(injection: Injection) -> None:
    """Kill every victim."""
    injection.kill()
