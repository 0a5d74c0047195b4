"""``CheckpointManager.save_async`` copies what is on the device, and no tensor on the CPU, which it writes later.

AdamW counts its steps in such tensors. The remedy: give it copies of them. Without it the save is held up here until
the next step is done, which otherwise is likely and no more.
"""

from __future__ import annotations

from typing import Any

import torch_xla.core.xla_model as xm

from takeback import probe
from takeback.backends.xla.saves import cloned
from takeback.backends.xla.traps import EVERY
from takeback.backends.xla.traps.run import Run


def train(run: Run, manager: Any, remedy: bool, steps: int) -> None:
    while run.step < steps:
        loss = run.advance()
        if run.step % EVERY == 1 and run.step > 1:
            if not remedy and manager._save_mutex.locked():  # by us, unless this life has saved nothing yet
                manager._save_mutex.release()
            manager.join()
            probe.saved(run.step - 1)
        probe.step(run.step, loss, state=run.state())
        if run.step % EVERY == 0:
            before = xm.get_rng_state()
            state = run.state()
            probe.digest("saved", run.step, state)
            if not remedy and run.step < steps:
                manager._save_mutex.acquire()
            manager.save_async(run.step, cloned(state) if remedy else state)
            xm.set_rng_state(before)
