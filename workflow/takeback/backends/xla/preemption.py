"""A run that is told that its machine goes, by the bridge's own means: all ranks save at one step, and leave.

The preemption sync manager of XLA's runtime takes SIGTERM in each process, looks for it once a second, and tells all of
them one step at which to stop (``CheckpointManager(chkpt_on_preemption=True)`` asks it at each save). The manager finds
its coordinator by a discovery of hosts that TPU alone has; here it is at the address of the rendezvous. From then on
SIGTERM ends the process no more: the loop must.

Ranks have a device each, and gradients meet on the host: ``--backend xla_processes``. Ran on PJRT's CPU device only.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm

from takeback import probe
from takeback.backends import xla
from takeback.backends.xla import saves, world
from takeback.backends.xla.traps.run import Run
from takeback.trainers.notice import STATUS
from takeback.trainers.reduction import flatten


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("xla.preemption", description=__doc__)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--notice", choices=("bridge", "ignore"), default="bridge", help="who listens to SIGTERM")
    parser.add_argument("--start", choices=("any", "checkpoint"), default="any", help="refuse to start from scratch")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--pace", type=float, default=0.25, help="seconds that a step takes at least")
    return parser.parse_args()


def main() -> int:
    args = parse()
    xla.setup(0)
    try:
        world.ranks(int(os.environ["WORLD_SIZE"]), "gloo")
    except world.WorldError as reason:
        return world.not_run(reason)
    probe.describe(bridge=xla.describe(), seed=0)
    probe.group(dist.get_world_size(), "gloo")
    run, files = Run(), saves.File(args.checkpoints)
    newest = files.newest()
    if newest is not None:
        run.restore(files.load(newest, {}))
    elif args.start == "checkpoint":
        probe.refused("there is no checkpoint to go on from")
        return 1
    probe.restored(run.step, state=run.state())
    if args.notice == "bridge":
        listen()
    while run.step < args.steps:
        began = time.monotonic()
        loss = together(run)
        probe.step(run.step, loss, state=run.state())
        leaves = args.notice == "bridge" and torch_xla._XLAC._sync_point_reached(run.step)
        if leaves:
            probe.digest("saved", run.step, run.state())
            files.save(run.step, run.state())
            probe.saved(run.step)
            leave_last()
            return STATUS
        time.sleep(max(0.0, began + args.pace - time.monotonic()))
    probe.finished(run.step, state=run.state())
    leave_last()
    return 0


def leave_last() -> None:
    """Rank 0 has the runtime's coordinator, without which the runtime aborts: it returns when all others have ended."""
    dist.barrier()
    for peer in range(1, dist.get_world_size()) if dist.get_rank() == 0 else ():
        with suppress(RuntimeError):  # nothing is sent: the kernel closes the connection of a process that has ended
            dist.recv(torch.zeros(1), src=peer)


def listen() -> None:
    """Start the coordinator of the runtime with rank 0, on a free port, and the sync manager in each rank."""
    port: list[Any] = [None]
    if dist.get_rank() == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            port = [str(free.getsockname()[1])]
    dist.broadcast_object_list(port)
    torch_xla._XLAC._ensure_xla_coordinator_initialized(
        dist.get_rank(), dist.get_world_size(), os.environ["MASTER_ADDR"], port[0]
    )
    torch_xla._XLAC._activate_preemption_sync_manager()


def together(run: Run) -> torch.Tensor:
    """One step of all ranks, each with a batch of its own; gradients are added in one fixed order on the host."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    run.step += 1
    xm.set_rng_state(run.step * ranks + rank)
    loss = run.gradients(run.step * ranks + rank)
    torch_xla.sync(wait=True)
    parameters = list(run.model.parameters())
    leaf = flatten([parameter.grad for parameter in parameters], loss).cpu()
    loss = world.mean([leaf], ranks, parameters)
    run.optimizer.step()
    torch_xla.sync(wait=True)
    xm.set_rng_state(run.step)  # one on all ranks
    return loss


if __name__ == "__main__":
    sys.exit(main())
