"""The bridge's reference trainer: the byte-level transformer on XLA devices, with a state that a restart can lose.

By hand, on a mesh of four virtual devices of this machine, in an environment made of ``envs/xla.txt``::

    export PJRT_DEVICE=CPU CPU_NUM_DEVICES=4 XLA_FLAGS=--xla_backend_optimization_level=0
    python -m takeback.backends.xla.train --checkpoints /tmp/ck --world 4

Started again with the same folder it goes on from the newest checkpoint there. With ``--backend xla`` one process has
all devices, and a batch is spread over them; with ``xla_processes`` each rank has one device, and gradients are added
in one fixed order on the host. Of the suite that watches it, it knows the probe alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor
from torch.nn import functional

from takeback import backends, probe
from takeback.backends.xla import saves, world
from takeback.backends.xla.state import State
from takeback.trainers import data, randomness
from takeback.trainers.build import rate
from takeback.trainers.model import Transformer
from takeback.trainers.reduction import flatten

MESH = "xla"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Settings, ``--name value``; lengths are in bytes of text, ``batch`` in sequences of one of ``shards`` parts."""
    parser = argparse.ArgumentParser("xla.train", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument("--backend", default=MESH, choices=(MESH, "xla_processes"))
    numbers = {"world": 1, "steps": 12, "samples": 64, "batch": 2, "shards": 8, "save_every": 4, "context": 16,
               "width": 16, "layers": 1, "heads": 2, "warmup": 4, "seed": 1234}  # fmt: skip
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual, help="default: %(default)s")
    for name, usual in {"dropout": 0.1, "learning_rate": 3e-3, "weight_decay": 0.1, "clip": 1.0}.items():
        parser.add_argument(f"--{name}", type=float, default=usual, help="default: %(default)s")
    words = {"rng": ("stream", "keyed"), "saves": tuple(saves.WAYS),
             "guard": ("rng", "none"), "staging": ("clone", "reference"), "forget": ("none", "rng"),
             "then": ("nothing", "sync")}  # fmt: skip
    for name, choices in words.items():
        parser.add_argument(f"--{name}", default=choices[0], choices=choices, help="default: %(default)s")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    cfg = parse(argv)
    backend = backends.get(cfg.backend)
    for name, value in backend.environment(cfg.world).items():
        os.environ.setdefault(name, value)
    backend.setup(0)
    try:
        mesh = join(cfg)
    except world.WorldError as reason:
        return world.not_run(reason)
    probe.group(cfg.world, cfg.backend)
    probe.describe(**facts(cfg), bridge={**backend.describe(), "mesh": [cfg.world] if mesh else None})
    run(cfg, mesh)
    dist.destroy_process_group()
    return 0


def join(cfg: argparse.Namespace) -> Any:
    """The mesh, or None where ranks are processes; either is as large as it was asked for, or WorldError."""
    if cfg.backend != MESH:
        world.ranks(cfg.world, "gloo")
        return None
    xr.use_spmd()
    # With SPMD the bridge refuses a process group of its own; distributed checkpoints want one.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return world.mesh(cfg.world)


def facts(cfg: argparse.Namespace) -> dict[str, Any]:
    """What a reader of the results must know about this run, for its provenance."""
    text = data.read_text(cfg.samples * cfg.context + 1)
    return {
        "dataset": {"name": text.name, "bytes": len(text.bytes), "sha256": text.sha256},
        "dtype": "float32",
        "shapes": {"micro_batch": [cfg.batch, cfg.context], "global_batch": [cfg.shards * cfg.batch, cfg.context]},
        "seed": cfg.seed,
        "rng": cfg.rng,
        "saves": cfg.saves,
    }


def build(cfg: argparse.Namespace, device: torch.device, mesh: Any) -> State:
    """A fresh state, the same wherever it is built; each device of a mesh has all of it."""
    randomness.seed_all(randomness.key(cfg.seed, "weights"), torch.device("cpu"))
    shape = {name: getattr(cfg, name) for name in ("width", "layers", "heads", "context", "dropout")}
    model = Transformer(**shape).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=cfg.learning_rate, weight_decay=cfg.weight_decay, foreach=False
    )
    for parameter in model.parameters():  # from the start, so that step 1 has the graph of all others
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
        for tensor in (parameter, *moments.values()) if mesh else ():  # else step 2 has another graph than step 1
            xs.mark_sharding(tensor, mesh, (None,) * tensor.dim())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: rate(done, cfg))
    randomness.seed_all(randomness.key(cfg.seed, "run"), torch.device("cpu"))
    torch_xla.sync(wait=True)
    xm.set_rng_state(randomness.key(cfg.seed, "device"))
    return State(model, optimizer, schedule, data.Sampler(cfg.samples, cfg.batch, cfg.shards, cfg.seed))


def run(cfg: argparse.Namespace, mesh: Any) -> None:
    """Restore the newest checkpoint, if there is one, and train to the last step."""
    device = torch_xla.device()
    windows = data.Windows(data.read_text(cfg.samples * cfg.context + 1), cfg.context)
    state = build(cfg, device, mesh)
    way = saves.of(cfg.saves, cfg.checkpoints, cfg.guard, cfg.staging)
    newest = way.newest()
    if newest is not None:
        state.restore(way.load(newest, state.collect()), cfg.forget, cfg.then)
    probe.restored(state.step, epoch=state.sampler.epoch, state=state.collect() if probe.active() else None)
    number, ranks = (0, 1) if mesh else (dist.get_rank(), cfg.world)
    spread = world.shared(mesh)
    shards = state.sampler.deal(number, ranks, "anew")
    plan = state.sampler.plan(shards, cfg.steps - state.step)
    first = state.step + 1
    while state.step < cfg.steps:
        step, epoch, began = state.step + 1, state.sampler.epoch, time.perf_counter()
        probe.point("step_begin", step)
        batches = [windows[next(plan)] for _ in shards]
        if mesh:
            loss = gradients_of(state, [window for _, window in batches], spread)
        else:
            loss = by_shards(cfg, state, step, shards, [window for _, window in batches], spread)
        norm = torch.linalg.vector_norm(torch.cat([p.grad.reshape(-1) for p in state.model.parameters()]))
        scale = (cfg.clip / (norm + 1e-6)).clamp(max=1.0)
        for parameter in state.model.parameters():
            parameter.grad.mul_(scale)
        lr = state.schedule.get_last_lr()[0]
        state.optimizer.step()
        state.schedule.step()
        state.sampler.advance()
        state.step = step
        torch_xla.sync(wait=True)
        if cfg.rng == "keyed":  # what lies between two steps is equal on all ranks
            seed(cfg, step, randomness.BETWEEN_STEPS)
        tell_time(step, first, began)
        if done := way.settle():
            probe.saved(done)
        consumed = [number for ids, _ in batches for number in ids]
        told = {"epoch": epoch, "samples": consumed, "micro_batches": len(shards), "lr": lr, "grad_norm": norm}
        probe.step(step, loss, **told, state=state.collect() if probe.active() else None)
        state.optimizer.zero_grad()
        if step % cfg.save_every == 0:
            save(state, way)
        if not probe.active() and number == 0:
            print(f"step {step} epoch {epoch} loss {float(loss):.6f} lr {lr:.2e} norm {float(norm):.4f}")
    if done := way.settle():
        probe.saved(done)
    probe.finished(state.step, state=state.collect() if probe.active() else None)


def gradients_of(state: State, windows: list[np.ndarray], spread: Any) -> Tensor:
    """Gradients of the mean loss of all ``windows`` (each batch x context + 1 bytes), whose rows ``spread`` lays out.

    Returns that loss.
    """
    noisy = np.concatenate([data.corrupt(window) for window in windows])
    inputs = spread(data.tensors(noisy, torch_xla.device())[0])
    targets = spread(data.tensors(np.concatenate(windows), torch_xla.device())[1])
    loss = functional.cross_entropy(state.model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.detach()


def by_shards(
    cfg: argparse.Namespace, state: State, step: int, shards: range, windows: list[np.ndarray], spread: Any
) -> Tensor:
    """The same of this rank's shards, one after the other, and of all others' by one sum in fixed order on the host."""
    leaves, parameters = [], list(state.model.parameters())
    for shard, window in zip(shards, windows, strict=True):
        if cfg.rng == "keyed":
            seed(cfg, step, shard)
        state.optimizer.zero_grad()
        loss = gradients_of(state, [window], spread)
        torch_xla.sync(wait=True)
        leaves.append(flatten([parameter.grad for parameter in parameters], loss).cpu())
    return world.mean(leaves, cfg.shards, parameters)


def seed(cfg: argparse.Namespace, step: int, shard: int) -> None:
    """All streams by (seed, step, shard), so that what is drawn depends on no number of ranks."""
    key = randomness.key(cfg.seed, step, shard)
    randomness.seed_all(key, torch.device("cpu"))
    xm.set_rng_state(key)


def save(state: State, way: Any) -> None:
    """Write the state as it is now; ``saved`` is told when it is complete."""
    if probe.active():
        probe.digest("saved", state.step, state.collect())
    probe.point("save.begin", state.step)
    if done := way.save(state.step, state.collect()):
        probe.saved(done)


def tell_time(step: int, first: int, began: float) -> None:
    """Seconds of a step, and of the compilations in them: the first steps compile, the others do not."""
    compiled = metrics.metric_data("CompileTime")
    total = compiled[1] / 1e9 if compiled else 0.0
    took = {"step": time.perf_counter() - began, "compiled_since_start": total}
    probe.record("note", step=step, text="compile" if step == first else "step", seconds=took)


if __name__ == "__main__":
    sys.exit(main())
