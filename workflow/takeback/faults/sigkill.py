"""SIGKILL: the process is gone between two instructions; nothing of its own runs any more."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from takeback.faults import Victim

ENDS_BY = {"signal": int(signal.SIGKILL)}


def strike(victims: Sequence[Victim]) -> None:
    """Kill every victim. With all ranks as victims: the machine is gone."""
    for victim in victims:
        signal.pidfd_send_signal(victim.descriptor, signal.SIGKILL)
