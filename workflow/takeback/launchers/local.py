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
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from takeback import faults
from takeback.launchers import process, rank
from takeback.launchers.recorder import Recorder

TICK = 0.05  # s between two looks at the records while a fault waits; a rank that stops is seen at once
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
            output = folder / "stdout" / f"rank-{number}.txt"
            # The repetition must not be equal by having the same parent, nor its ranks by being forks of one.
            afresh = spec["repeat"] > 0 and number == 0
            ranks[number] = rank.start(command(spec, folder), environment, folder, root, output, afresh)
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
    words = [filled(word, fill) for word in spec["trainer"]["command"]]
    for name, value in spec["trainer"]["settings"].items():
        words += [f"--{name}", str(value)]
    return words


def filled(word: str, fill: dict[str, str]) -> str:
    """A word of the command; braces that are no placeholder of ours are the trainer's own business."""
    for name, value in fill.items():
        word = word.replace(f"{{{name}}}", value)
    return word


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
        "TAKEBACK_ARMED": json.dumps([fault for fault in spec["faults"] if number in victims_of(fault, world)]),
    }


def victims_of(fault: dict[str, Any], world: int) -> list[int]:
    """The ranks that a fault strikes. Each of them is armed; the first one that is held makes it strike all."""
    named = {"last": [world - 1], "all": list(range(world))}
    return named[fault["ranks"]] if isinstance(fault["ranks"], str) else fault["ranks"]


class Watch:
    """Watches the ranks of one attempt: strikes where a fault waits, ends what hangs."""

    def __init__(self, spec: dict[str, Any], folder: Path, ranks: dict[int, int], recorder: Recorder) -> None:
        self.ranks, self.recorder, self.world = ranks, recorder, spec["world"]
        self.alive = {number: os.pidfd_open(pid) for number, pid in ranks.items()}
        self.waiting = {fault["id"]: fault for fault in spec["faults"]}
        self.records = folder / "records"
        self.read = dict.fromkeys(ranks, 0)
        self.struck: set[int] = set()
        self.ended_by_us: set[int] = set()
        self.seconds = spec["deadline"]
        self.deadline = time.monotonic() + self.seconds

    def until_all_have_ended(self, bound: Sequence[int]) -> None:
        with process.told_of_children() as told:
            self.watch(told, bound)

    def watch(self, told: int, bound: Sequence[int]) -> None:
        poll = select.poll()
        for descriptor in (told, *self.alive.values(), *bound):
            poll.register(descriptor, select.POLLIN)
        while self.alive:
            left = self.deadline - time.monotonic()
            if left <= 0 and not self.ended_by_us:
                self.end_the_rest()
            wait = TICK if self.waiting else SETTLE if self.ended_by_us else max(left, 0)
            ready = {descriptor for descriptor, _ in poll.poll(1000 * wait)}
            if told in ready:
                os.read(told, 512)
            if ready & set(bound):
                sys.exit("takeback: whoever asked for this run is gone")
            for number, descriptor in list(self.alive.items()):
                if descriptor in ready:
                    poll.unregister(descriptor)
                    self.reap(number)
            for number in list(self.alive):
                self.strike_if_held(number)

    def reap(self, number: int) -> None:
        _, status = os.waitpid(self.ranks[number], 0)
        os.close(self.alive.pop(number))
        number_of_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        by = "fault" if number in self.struck else "supervisor" if number in self.ended_by_us else "itself"
        how = {"of_rank": number, "of_pid": self.ranks[number], "status": code, "signal": number_of_signal, "by": by}
        self.recorder("exited", attempt=ATTEMPT, **how)
        if code != 0:  # the others now either see it or wait for ever
            self.deadline = min(self.deadline, time.monotonic() + SETTLE)

    def end_the_rest(self) -> None:
        left = sorted(self.alive)
        after_exit = len(left) < len(self.ranks)
        self.recorder("hang_detected", attempt=ATTEMPT, seconds=self.seconds, ranks=left, after_exit=after_exit)
        for number in left:
            self.ended_by_us.add(number)
            signal.pidfd_send_signal(self.alive[number], signal.SIGKILL)

    def strike_if_held(self, number: int) -> None:
        for record in self.new_records(number):
            fault = self.waiting.get(record["fault"])
            # The record is written just before the process stops itself.
            if fault is None or not process.wait_until_stopped(record["pid"], self.deadline):
                continue
            del self.waiting[fault["id"]]
            wanted = victims_of(fault, self.world)
            victims = [faults.Victim(n, self.ranks[n], self.alive[n]) for n in wanted if n in self.alive]
            module = faults.get(fault["kind"])
            receipt = {
                "attempt": ATTEMPT,
                "fault": fault["id"],
                "action": fault["kind"],
                "step": record["step"],
                "point": record["point"],
                "victims": [{"rank": victim.rank, "pid": victim.pid} for victim in victims],
                "ends_by": module.ENDS_BY,
            }
            self.recorder("fault_armed", **receipt, held={"rank": number, "pid": record["pid"]})
            module.strike(victims)
            self.recorder("fault_fired", **receipt)
            self.struck |= {victim.rank for victim in victims}

    def new_records(self, number: int) -> list[dict[str, Any]]:
        """``held`` records that a rank has written since the last look."""
        if not self.waiting:
            return []
        try:
            with (self.records / f"attempt{ATTEMPT}-rank{number}.jsonl").open("rb") as file:
                file.seek(self.read[number])
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.read[number] += len(whole)
        # A look at the text first: parsing every record costs more than the run.
        candidates = (json.loads(line) for line in whole.splitlines() if b'"held"' in line)
        return [record for record in candidates if record["kind"] == "held"]
