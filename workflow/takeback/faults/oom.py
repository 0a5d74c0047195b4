"""The victim runs out of memory: the kernel kills it, in a control group with a limit a bit above what it has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from takeback import cgroup
from takeback.faults import Injection, Surroundings

PARAMETERS = {"megabytes": 64}  # that it may still allocate, of 2**20 bytes
ENDS_BY = [{"signal": 9}]
PROVES = {"killed_for_memory": 1}
EACH = True
MEGABYTE = 1 << 20
PATIENCE = 20.0  # s for the kernel to kill it
unavailable = cgroup.unavailable


class Limit(Surroundings):
    """The control groups of the victims, each with one rank in it."""

    def __init__(self) -> None:
        self.groups: dict[int, cgroup.Group] = {}


@contextmanager
def surround(fault: dict[str, Any], folder: Path, world: int) -> Iterator[Limit]:
    """Nothing until it strikes; then groups that are removed again."""
    cgroup.remove_stale()
    limit = Limit()
    try:
        yield limit
    finally:
        for group in limit.groups.values():
            group.remove()


def strike(injection: Injection) -> Iterator[float]:
    """Put the victim under its limit, and let it go on to its end."""
    (victim,) = injection.victims
    group = injection.around.groups[victim.rank] = cgroup.Group(f"{injection.fault['id']}-{victim.rank}")
    group.add(victim.pid)
    group.leave(int(injection.parameters["megabytes"] * MEGABYTE))
    yield 0.0  # the strike is told now: what the others see of it comes after
    injection.let_go()
    deadline = time.monotonic() + PATIENCE
    while not group.killed and time.monotonic() < deadline:
        time.sleep(0.001)
    injection.seen["killed_for_memory"] = group.killed


def act(megabytes: float) -> None:
    """Allocate until the kernel ends it; twice the limit at most, should there be none."""
    taken = []
    while len(taken) < 2 * megabytes:
        taken.append(bytearray(b"\1") * MEGABYTE)
    raise MemoryError(f"{len(taken)} MiB were given, {megabytes} should have been the limit")
