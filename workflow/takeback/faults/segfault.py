"""A read from address 0: the kernel ends the process by SIGSEGV, as a bug in a kernel or a driver would."""

from __future__ import annotations

import ctypes
import faulthandler
import resource

from takeback.faults import Injection

ENDS_BY = [{"signal": 11}]
EACH = True


def strike(injection: Injection) -> None:
    """Let the victim go on to the bad read."""
    injection.let_go()


def act() -> None:
    """Read from address 0."""
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # nobody wants the core of a fault on purpose
    ctypes.string_at(0)
