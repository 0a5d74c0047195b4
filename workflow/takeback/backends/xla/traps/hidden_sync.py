"""``CheckpointManager.save`` syncs, and each sync moves the generator of the device on: who saves drops other units.

The run that was killed went on from memory, with a generator that saving had moved; the run that goes on has the
generator that was saved. The remedy: read it before the save, put it back after.
"""

from __future__ import annotations

from typing import Any

import torch_xla.core.xla_model as xm

from takeback import probe
from takeback.backends.xla.traps import EVERY
from takeback.backends.xla.traps.run import Run


def train(run: Run, manager: Any, remedy: bool, steps: int) -> None:
    while run.step < steps:
        loss = run.advance()
        probe.step(run.step, loss, state=run.state())
        if run.step % EVERY == 0:
            before = xm.get_rng_state()
            probe.digest("saved", run.step, run.state())
            manager.save(run.step, run.state())
            if remedy:
                xm.set_rng_state(before)
            probe.saved(run.step)
