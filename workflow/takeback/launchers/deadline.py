"""When the processes of a leg are ended: at its deadline, or some time after a fault has struck."""

from __future__ import annotations

import time

from takeback import clock


class Deadline:
    """It runs from now on, and no longer than the clock of the whole workflow.

    Attributes:
        seconds: what it allowed: ``seconds`` from the start, or ``notice`` from a strike.
        at: when it is over, in seconds of ``time.monotonic()``.
    """

    def __init__(self, seconds: float, notice: float | None) -> None:
        self.seconds, self.notice = seconds, notice
        self.at = time.monotonic() + min(seconds, clock.left())

    def left(self, struck: float | None) -> float:
        """Seconds until it is over; the last strike, if any, may bring it nearer."""
        if self.notice is not None and struck is not None and struck + self.notice < self.at:
            self.at, self.seconds = struck + self.notice, self.notice
        return max(0.0, self.at - time.monotonic())

    def within(self, seconds: float) -> None:
        """Let it be over in ``seconds`` at the latest."""
        self.at = min(self.at, time.monotonic() + seconds)
