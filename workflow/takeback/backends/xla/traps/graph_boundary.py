"""A sync between forward and backward makes two graphs of one, which round otherwise: a boundary is part of the run.

The remedy: the same boundaries in all its lives. What prints, profiles or debugs a resumed run must not add one.
There is no dropout here, whose masks would be others as well.
"""

from __future__ import annotations

from typing import Any

import torch_xla.core.xla_model as xm

from takeback import probe
from takeback.backends.xla.traps import EVERY
from takeback.backends.xla.traps.run import Run

DROPOUT = 0.0


def train(run: Run, manager: Any, remedy: bool, steps: int) -> None:
    while run.step < steps:
        loss = run.advance(sync_before_backward=not remedy)
        xm.set_rng_state(run.step)  # a second sync in a step would move it further
        probe.step(run.step, loss, state=run.state())
        if run.step % EVERY == 0:
            before = xm.get_rng_state()
            probe.digest("saved", run.step, run.state())
            manager.save(run.step, run.state())
            xm.set_rng_state(before)
            probe.saved(run.step)
