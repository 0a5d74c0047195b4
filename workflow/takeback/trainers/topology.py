"""Who takes part: the process group, whether its ranks agree, and a handover to other ranks."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from takeback import probe

COULD_NOT_LOAD = -1


class DisagreementError(RuntimeError):
    """Ranks have restored different states: one line that says which rank has what."""


def world_from_environment() -> int:
    """Ranks that were launched: ``WORLD_SIZE``, or 1 where nobody launched anything."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join(backend: str, device: torch.device) -> None:
    """Join the process group that the environment names; without one, be a world of one."""
    bound = device if device.type == "cuda" else None
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend, device_id=bound)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=bound)


def join_anew(backend: str, seconds: float, number: int) -> None:
    """Destroy the group and form a new one of the same ranks, without a launcher.

    It meets under keys of its own. Under the old ones the store still has the addresses of the dead, and gloo goes to
    these: of 12 tries of ``init_process_group(timeout=2 s)`` 5 raised "Connection refused" at once, and 7 hung without
    heeding the time-out (torch 2.13).

    Args:
        seconds: that it may take; 0: the library's own default.
        number: how many groups this rank has lost.

    Raises:
        torch.distributed.DistError: it has not formed in time.
    """
    dist.destroy_process_group()
    timeout = timedelta(seconds=seconds) if seconds else dist.default_pg_timeout
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
    rank, world = int(os.environ["RANK"]), world_from_environment()
    store = dist.PrefixStore(f"anew-{number}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)


def first_ranks(count: int, seconds: float = 0.0) -> dist.ProcessGroup:
    """The group of ranks 0 to ``count`` - 1; called on all ranks alike.

    Args:
        seconds: that its collectives wait for a peer; 0: the library's own default. A group of its own has them:
            ``init_process_group(timeout=…)`` bounds the start too, in which a rank may be seconds behind, and gloo's
            sends and receives don't heed what is set later (torch 2.13, ``_set_pg_timeout``).
    """
    if seconds:
        return dist.new_group(range(count), timeout=timedelta(seconds=seconds))
    return dist.group.WORLD if count == dist.get_world_size() else dist.new_group(range(count))


def count_ranks(device: torch.device) -> int:
    """The number of ranks, found by adding one from each."""
    ones = torch.ones(1, dtype=torch.int64, device=device)
    dist.all_reduce(ones)
    return int(ones)


def all_agree(well: bool, group: dist.ProcessGroup) -> bool:
    """True on every rank if ``well`` is true on every rank; nobody leaves before all have come."""
    answers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, well, group=group)
    return all(answers)


def check_agreement(step: int, epoch: int, digest: int, group: dist.ProcessGroup) -> None:
    """Compare the smallest and the largest restored step, epoch and state digest over the ranks.

    Args:
        step: completed steps that this rank has restored; ``COULD_NOT_LOAD`` says that it failed.

    Raises:
        DisagreementError: on every rank, if they differ.
    """
    began = time.perf_counter()
    rows: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(rows, (step, epoch, digest), group=group)
    if min(rows) != max(rows):
        have = "; ".join(f"rank {rank}: {_words(*row)}" for rank, row in enumerate(rows))
        raise DisagreementError(f"ranks have restored different states: {have}")
    probe.record("agreed", seconds=time.perf_counter() - began)


def add_up(step: int, device: torch.device) -> None:
    """Taken for a check: a collective of the restored steps. It agrees on a shape, and on a sum without meaning."""
    total = torch.tensor([step], device=device)
    dist.all_reduce(total)
    probe.record("note", step=step, text=f"an all-reduce of the restored steps returned {int(total)}, without an error")


def heal(model: torch.nn.Module, step: int) -> int:
    """Give all ranks rank 0's weights, by the constructor of DistributedDataParallel, and its ``step``; returns that.

    Nothing else of the state is touched (torch/nn/parallel/distributed.py: ``_sync_module_states``).
    """
    torch.nn.parallel.DistributedDataParallel(model)
    box = [step]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _words(step: int, epoch: int, digest: int) -> str:
    if step == COULD_NOT_LOAD:
        return "could not load"
    return f"step {step} epoch {epoch} state {digest:016x}"


def hand_over(snapshot: dict[str, Any] | None) -> dict[str, Any]:
    """Give rank 0's ``snapshot`` to all ranks in memory, through the process group and no file."""
    box = [snapshot]
    dist.broadcast_object_list(box, src=0)
    assert box[0] is not None
    return box[0]
