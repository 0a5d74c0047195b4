"""The process ends at once with a status of its own: no exception, no clean-up, no word to its peers."""

from __future__ import annotations

import os

from takeback.faults import Injection

PARAMETERS = {"status": 7}
ENDS_BY = [{"status": "status"}]
EACH = True


def strike(injection: Injection) -> None:
    """Let the victim go on to its end."""
    injection.let_go()


def act(status: int) -> None:
    """End this process with ``status``."""
    os._exit(status)
