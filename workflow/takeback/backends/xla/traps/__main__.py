"""Start one of the traps: restore its newest checkpoint, if there is one, and train to the last step."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import torch.distributed as dist
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

from takeback import probe
from takeback.backends import xla
from takeback.backends.xla import traps, world
from takeback.backends.xla.traps.run import Run

NAMES = sorted(module.name for module in pkgutil.iter_modules(traps.__path__) if module.name not in ("run", "__main__"))


def main() -> int:
    parser = argparse.ArgumentParser("xla.traps", description=__doc__)
    parser.add_argument("--trap", choices=NAMES, required=True)
    parser.add_argument("--remedy", choices=("yes", "no"), default="no")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    xla.setup(0)
    # A group of this process alone, which the manager asks for.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:  # before anything asks for a device
        devices = world.devices()
    except world.WorldError as reason:
        return world.not_run(reason)
    trap = importlib.import_module(f"takeback.backends.xla.traps.{args.trap}")
    run = Run(getattr(trap, "DROPOUT", 0.1))
    probe.describe(bridge=xla.describe(), seed=0)
    probe.group(devices, "gloo")
    # On preemption it would ask the network for a coordinator, which there is on TPU alone.
    manager = CheckpointManager(str(args.checkpoints), save_interval=1, chkpt_on_preemption=False)
    if manager.all_steps():
        state = run.state()
        manager.restore(max(manager.all_steps()), state)
        run.restore(state)
    probe.restored(run.step, state=run.state())
    trap.train(run, manager, args.remedy == "yes", args.steps)
    manager.join()
    probe.finished(run.step, state=run.state())
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
