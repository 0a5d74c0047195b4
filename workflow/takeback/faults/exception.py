"""An exception that nobody handles, on one rank: the program unwinds, says so, and ends with status 1."""

from __future__ import annotations

from takeback.faults import Injection

PARAMETERS = {"text": "a fault on purpose"}
ENDS_BY = [{"status": 1}]
EACH = True


class InjectedError(RuntimeError):
    """Raised in a rank by the suite, never by a trainer."""


def strike(injection: Injection) -> None:
    """Let the victim go on to its exception."""
    injection.let_go()


def act(text: str) -> None:
    """Raise :class:`InjectedError`."""
    raise InjectedError(text)
