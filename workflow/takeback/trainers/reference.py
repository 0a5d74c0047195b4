"""The reference trainer: a byte-level transformer, a state rich enough to be lost in many ways, one loop.

By hand::

    python -m takeback.trainers.reference --checkpoints /tmp/ck

On two ranks::

    torchrun --nproc-per-node 2 -m takeback.trainers.reference --checkpoints /tmp/ck

Started again with the same folder it goes on from the newest checkpoint there. Settings:
``--help``. Of the suite that watches it, it knows the probe alone.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from takeback import backends, probe
from takeback.trainers import data, settings, strategies, topology
from takeback.trainers.build import build, facts
from takeback.trainers.checkpoints import CheckpointError, Checkpoints
from takeback.trainers.notice import STATUS, Notice
from takeback.trainers.race import save_and_reload
from takeback.trainers.settings import Settings
from takeback.trainers.state import State
from takeback.trainers.strategies import Strategy, local
from takeback.trainers.strategies.whole import whole


def main(argv: list[str] | None = None) -> int:
    world = topology.world_from_environment()
    cfg = settings.parse(argv, world, prog="reference", description=__doc__)
    backend = backends.get(cfg.backend)
    for name, value in backend.environment(world).items():
        os.environ.setdefault(name, value)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if reason := backend.unavailable(local_rank + 1):
        return _refuse(f"--backend {cfg.backend}: {reason}", status=2)
    backend.setup(local_rank)
    device = torch.device(backend.device(local_rank))
    topology.join(cfg.backend, device)
    status, lost = None, 0
    while status is None:
        try:
            probe.group(topology.count_ranks(device), cfg.backend)
            status = run(cfg, backend.describe(), device)
        except (data.DataError, CheckpointError, topology.DisagreementError) as error:
            status = _refuse(str(error), status=1)
        except RuntimeError as error:  # a collective failed: a peer is lost
            if cfg.survivors == "exit":
                raise
            probe.record("error", type=type(error).__name__, text=str(error))
            lost += 1
            topology.join_anew(cfg.backend, cfg.timeout, lost)
    dist.destroy_process_group()
    return status


def run(cfg: Settings, bridge: dict[str, Any], device: torch.device) -> int:
    """Restore, agree, then train each phase on its ranks: one phase, or two with a handover. Returns an exit status."""
    notice = Notice(cfg.notice)
    phases = cfg.phases(dist.get_world_size())
    shares = [strategies.of(cfg, name, ranks, device) for ranks, _, name in phases]
    held_out = cfg.shards * cfg.batch
    text = data.read_text((cfg.samples + held_out) * cfg.context + 1)
    windows = data.Windows(text, cfg.context)
    shape = {name: getattr(cfg, name) for name in ["width", "layers", "heads", "context", "samples", "shards", "batch"]}
    checkpoints = Checkpoints(cfg, {**shape, "text": text.sha256})
    state = build(cfg, shares[0]) if shares[0].takes_part else None
    probe.describe(**(facts(cfg, state.model, text) if state else {}), bridge=bridge)
    restore(cfg, state, checkpoints, shares[0])

    for number, (share, (ranks, last_step, _)) in enumerate(zip(shares, phases, strict=True)):
        if number > 0:
            snapshot = topology.hand_over(state.snapshot(shares[number - 1].group) if state else None)
            state = build(cfg, share) if share.takes_part else None
            if state:
                state.restore(snapshot, dist.get_rank(share.data))
                probe.record("note", step=state.step, text=f"handed over to {ranks} ranks, {share.name}")
        if state and not train(cfg, state, windows, checkpoints, share, notice, last_step):
            return STATUS
    checkpoints.wait()
    dist.barrier()
    if state:
        probe.finished(state.step, state=state.collect() if probe.active() else None)
    return 0


def train(
    cfg: Settings,
    state: State,
    windows: data.Windows,
    checkpoints: Checkpoints,
    share: Strategy,
    notice: Notice,
    last_step: int,
) -> bool:
    """The loop: global steps up to ``last_step`` on the ranks of ``share``; False if it left before, on notice."""
    shards = state.sampler.deal(dist.get_rank(share.data), dist.get_world_size(share.data), cfg.deal)
    parameters = list(state.model.parameters())
    plan = state.sampler.plan(shards, last_step - state.step)
    batches = data.batches(cfg.loader, windows, plan)

    while state.step < last_step:
        step, epoch = state.step + 1, state.sampler.epoch
        probe.point("step_begin", step)
        consumed = []
        for shard in shards:
            ids, window = next(batches)
            state.rng.enter(step, shard)
            inputs, _ = data.tensors(data.corrupt(window), share.device)
            _, targets = data.tensors(window, share.device)
            probe.point("forward", step)
            loss = functional.cross_entropy(share.forward(state.model, inputs).flatten(0, 1), targets.flatten())
            probe.point("backward", step)
            share.add(state.model, loss)
            consumed += ids

        probe.point("allreduce", step)
        loss = share.mean(state.model, partial(probe.point, "allreduce.in", step))
        gradients = [parameter.grad for parameter in parameters]
        # One buffer, the same on every rank: one order.
        norm = torch.linalg.vector_norm(torch.cat([gradient.reshape(-1) for gradient in whole(gradients)]))
        scale = (cfg.clip / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            local(gradient).mul_(scale)

        probe.point("optimizer", step)
        lr = state.schedule.get_last_lr()[0]
        state.optimizer.step()
        state.schedule.step()
        update_average(state, cfg.ema)
        state.sampler.advance()
        state.rng.leave(step)
        state.step = step
        probe.step(
            step,
            loss,
            epoch=epoch,
            samples=consumed if share.tells_samples else (),
            micro_batches=len(shards),
            lr=lr,
            grad_norm=norm,
            state=state.collect() if probe.active() else None,
        )

        if step % cfg.evaluate_every == 0:
            evaluate(cfg, state, windows, share)
        leaves = notice.leaves(share.group, share.device)
        if leaves or step % cfg.save_every == 0:
            if cfg.reload == "never":
                checkpoints.save(state, share.group)
            else:
                save_and_reload(cfg, state, checkpoints, share.group)
        if leaves:
            checkpoints.wait()
        if dist.get_rank() == 0 and not probe.active():
            print(f"step {step} epoch {epoch} loss {loss:.6f} lr {lr:.2e} norm {norm:.4f}")
        if leaves:
            return False
    return True


def restore(cfg: Settings, state: State | None, checkpoints: Checkpoints, share: Strategy) -> None:
    """Bring back the newest checkpoint, if any, and go on only if all ranks of the first phase have the same."""
    if state is None:
        probe.restored(0, epoch=0)
        return
    problem = None
    try:
        checkpoints.restore(state, share, stale=dist.get_rank() == cfg.stale)
    except CheckpointError as error:
        problem = error
    restored = state.step if problem is None else topology.COULD_NOT_LOAD
    try:
        if cfg.agreement == "check":
            topology.check_agreement(restored, state.sampler.epoch, state.digest(), share.group)
        else:
            topology.add_up(restored, share.device)
    finally:
        if problem is not None:
            raise problem
    if cfg.heal == "ddp":
        state.step = topology.heal(state.model, state.step)
    probe.restored(state.step, epoch=state.sampler.epoch, state=state.collect() if probe.active() else None)


@torch.no_grad()
def update_average(state: State, decay: float) -> None:
    """Exponential moving average of the weights."""
    for mean, parameter in zip(state.average.parameters(), state.model.parameters(), strict=True):
        local(mean).lerp_(local(parameter), 1 - decay)


@torch.no_grad()
def evaluate(cfg: Settings, state: State, windows: data.Windows, share: Strategy) -> None:
    """Loss of the averaged weights on held-out samples; every rank takes all, so all have the same bits."""
    probe.point("evaluate", state.step)
    _, held_out = windows[list(range(cfg.samples, cfg.samples + cfg.shards * cfg.batch))]
    inputs, targets = data.tensors(held_out, share.device)
    loss = functional.cross_entropy(share.forward(state.average, inputs).flatten(0, 1), targets.flatten())
    if float(loss) < state.best["loss"]:
        state.best = {"loss": float(loss), "step": state.step}
    if dist.get_rank() == 0:
        bits, _ = probe.float_bits(loss)
        probe.record("evaluated", step=state.step, loss_bits=bits, best=state.best["loss"])


def _refuse(reason: str, status: int) -> int:
    print(f"reference: {reason}", file=sys.stderr)
    probe.refused(reason)
    return status


if __name__ == "__main__":
    sys.exit(main())
