"""Ranks of a bench: forks of this process, in a gloo group of their own, one thread each."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from takeback.launchers import local


def run(world: int, work: Callable[..., None], *arguments: Any) -> None:
    """``work(*arguments)`` on each of ``world`` ranks.

    Raises:
        SystemExit: a rank failed; it has told why.
    """
    store, gate = local.host_store(), os.pipe()
    ranks = [_forked(rank, world, store.port, gate, work, arguments) for rank in range(world)]
    for end in gate:
        os.close(end)
    statuses = [os.waitpid(pid, 0)[1] for pid in ranks]
    if any(statuses):
        raise SystemExit(f"a rank of world {world} failed")


def _forked(
    rank: int, world: int, port: int, gate: tuple[int, int], work: Callable[..., None], arguments: tuple[Any, ...]
) -> int:
    if pid := os.fork():
        return pid
    status = 1
    try:
        local.wait_at(gate)
        torch.set_num_threads(1)
        store = dist.TCPStore(local.LOOPBACK, port)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        work(*arguments)
        dist.destroy_process_group()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
