"""The local launcher: a supervisor that is never the victim, and its forked ranks, on this machine.

The supervisor imports torch once and forks the ranks from there, which is most of what a short run
costs. It must stay clean for that: no parallel region and no device runtime before the fork
(a child of a process with a thread pool hangs in its first parallel region).

It hosts the rendezvous store on a port that the kernel picks, so that a program which calls
``init_process_group()`` with the standard variables works as under torchrun
(torch/distributed/rendezvous.py: ``TORCHELASTIC_USE_AGENT_STORE``).
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from takeback import faults
from takeback.launchers import process, rank
from takeback.launchers.recorder import Recorder

TICK = 0.005  # s between two looks at the records while a fault waits
SETTLE = 15.0  # s that ranks have to end by themselves once one of them has ended badly
ATTEMPT = 0  # this launcher never restarts: a leg is one attempt


def launch(spec: dict[str, Any], folder: Path, root: Path, recorder: Recorder, bound: Sequence[int] = ()) -> None:
    """Run one leg. Always leaves no process behind, also when it is interrupted.

    Args:
        spec: a leg's specification (:attr:`takeback.leg.Leg.spec`).
        folder: the leg's folder, with ``checkpoints``, ``records`` and ``stdout`` in it.
        root: folder that files in the trainer's command are relative to; the ranks run in the leg's folder.
        recorder: where the supervisor tells what it does.
        bound: descriptors that become readable when whoever asked for the run is gone; it ends with them.

    Raises:
        SystemExit: whoever asked for the run is gone.
    """
    process.adopt_orphans()
    try:
        preload()
        store = host_store()
        ranks = {}
        for number in range(spec["world"]):
            environment = variables(spec, number, store.port, folder)
            ranks[number] = rank.start(
                command(spec, folder), environment, folder, root, folder / "stdout" / f"rank-{number}.txt"
            )
            recorder("launched", attempt=ATTEMPT, of_rank=number, of_pid=ranks[number])
        Watch(spec, folder, ranks, recorder).until_all_have_ended(bound)
    finally:
        process.end_descendants()


def preload() -> None:
    """Import all that a rank needs, so that its fork has it. Runs no kernel."""
    import torch._dynamo
    import torch.distributed
    import torch.utils.data  # noqa: F401


def host_store() -> Any:
    """The rendezvous store, on a port that the kernel picks."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def command(spec: dict[str, Any], folder: Path) -> list[str]:
    """The words that start one rank, with settings appended as ``--name value``."""
    fill = {"checkpoints": str(folder / "checkpoints"), "backend": spec["backend"], "world": str(spec["world"])}
    words = [word.format(**fill) if "{" in word else word for word in spec["trainer"]["command"]]
    for name, value in spec["trainer"]["settings"].items():
        words += [f"--{name}", str(value)]
    return words


def variables(spec: dict[str, Any], number: int, port: int, folder: Path) -> dict[str, str]:
    """Environment of one rank: the standard variables, and the probe's."""
    world = spec["world"]
    return {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(ATTEMPT),
        "TAKEBACK_RECORDS": str(folder / "records"),
        "TAKEBACK_ATTEMPT": str(ATTEMPT),
        "TAKEBACK_ARMED": json.dumps([fault for fault in spec["faults"] if holds(fault, world) == number]),
    }


def holds(fault: dict[str, Any], world: int) -> int:
    """The rank that is held at the fault's point: the last of the victims."""
    ranks = fault["ranks"]
    return world - 1 if isinstance(ranks, str) else max(ranks)


class Watch:
    """Watches the ranks of one attempt: strikes where a fault waits, ends what hangs."""

    def __init__(self, spec: dict[str, Any], folder: Path, ranks: dict[int, int], recorder: Recorder) -> None:
        self.ranks, self.recorder = ranks, recorder
        self.waiting = {fault["id"]: fault for fault in spec["faults"]}
        self.records = folder / "records"
        self.read: dict[int, int] = {}
        self.struck: set[int] = set()
        self.ended_by_us: set[int] = set()
        self.deadline = time.monotonic() + spec["deadline"]
        self.seconds = spec["deadline"]

    def until_all_have_ended(self, bound: Sequence[int]) -> None:
        descriptors = {os.pidfd_open(pid): number for number, pid in self.ranks.items()}
        poll = select.poll()
        for descriptor in (*descriptors, *bound):
            poll.register(descriptor, select.POLLIN)
        while descriptors:
            left = self.deadline - time.monotonic()
            if left <= 0:
                self.end_the_rest(set(descriptors.values()))
                left = SETTLE
            for descriptor, _ in poll.poll(1000 * min(left, TICK if self.waiting else left)):
                if descriptor in bound:
                    sys.exit("takeback: whoever asked for this run is gone")
                poll.unregister(descriptor)
                os.close(descriptor)
                self.reap(descriptors.pop(descriptor))
            for number in set(descriptors.values()):
                self.strike_if_held(number)

    def reap(self, number: int) -> None:
        _, status = os.waitpid(self.ranks[number], 0)
        signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        by = "fault" if number in self.struck else "supervisor" if number in self.ended_by_us else "itself"
        self.recorder(
            "exited", attempt=ATTEMPT, of_rank=number, of_pid=self.ranks[number], status=code, signal=signal, by=by
        )
        if code != 0:  # the others now either see it or wait for ever
            self.deadline = min(self.deadline, time.monotonic() + SETTLE)

    def end_the_rest(self, numbers: set[int]) -> None:
        self.recorder(
            "hang_detected",
            attempt=ATTEMPT,
            seconds=self.seconds,
            ranks=sorted(numbers),
            after_exit=len(numbers) < len(self.ranks),
        )
        for number in numbers:
            self.ended_by_us.add(number)
            os.kill(self.ranks[number], 9)
        self.deadline = float("inf")

    def strike_if_held(self, number: int) -> None:
        for record in self.new_records(number):
            fault = self.waiting.pop(record["fault"], None)
            if fault is None:
                continue
            # The record is written just before the process stops itself.
            if not process.wait_until_stopped(record["pid"]):
                continue
            everybody = fault["ranks"] == "all"
            chosen = self.ranks if everybody else [number] if fault["ranks"] == "last" else fault["ranks"]
            victims = [faults.Victim(n, self.ranks[n]) for n in chosen]
            receipt = {
                "attempt": ATTEMPT,
                "fault": fault["id"],
                "action": fault["kind"],
                "step": record["step"],
                "point": record["point"],
            }
            receipt["victims"] = [vars(victim) for victim in victims]
            self.recorder("fault_armed", **receipt, held={"rank": number, "pid": record["pid"]})
            faults.get(fault["kind"])(victims)
            self.recorder("fault_fired", **receipt)
            self.struck |= {victim.rank for victim in victims}

    def new_records(self, number: int) -> list[dict[str, Any]]:
        """``held`` records that a rank has written since the last look."""
        if not self.waiting:
            return []
        try:
            with (self.records / f"attempt{ATTEMPT}-rank{number}.jsonl").open("rb") as file:
                file.seek(self.read.get(number, 0))
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.read[number] = self.read.get(number, 0) + len(whole)
        return [json.loads(line) for line in whole.splitlines() if b'"held"' in line]
