"""The local launcher: a supervisor that is never the victim, and its forked ranks, on this machine.

The supervisor imports torch once and forks the ranks from there, which is most of what a short run
costs. It must stay clean for that: no parallel region and no device runtime before the fork
(a child of a process with a thread pool hangs in its first parallel region).

It hosts the rendezvous store on a port that the kernel picks, so that a program which calls
``init_process_group()`` with the standard variables works as under torchrun
(torch/distributed/rendezvous.py: ``TORCHELASTIC_USE_AGENT_STORE``).
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from takeback import backends, clock, faults, network, objectstore
from takeback.faults import Surroundings, Victim
from takeback.launchers import process, rank
from takeback.launchers.deadline import Deadline
from takeback.launchers.injector import Injector, armed
from takeback.launchers.recorder import Recorder
from takeback.leg import processes_of

SETTLE = 15.0  # s that ranks have to end by themselves once one of them has ended badly
LOOPBACK = "127.0.0.1"
ATTEMPT = 0  # this launcher never restarts: a leg is one attempt
PARAMETERS = {}


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
    with ExitStack() as stack:
        around = surroundings(spec, folder, stack)
        stack.callback(process.end_descendants)  # before what surrounds them is taken away
        getattr(backends.get(spec["backend"]), "preload", preload)()
        injector = Injector(spec["faults"], folder, processes_of(spec), around, recorder, ATTEMPT)
        store = host_store()
        ranks = start_ranks(spec, folder, root, recorder, around, store.port)
        Watch(spec["deadline"], spec.get("notice"), ranks, injector, recorder).until_all_have_ended(bound)
    injector.finish()


def surroundings(spec: dict[str, Any], folder: Path, stack: ExitStack) -> dict[str, Surroundings]:
    """What the planned faults put around the ranks, by fault, and the object store, if the trainer wants one; all is
    taken away with the stack.
    """
    around = {}
    for fault in spec["faults"]:
        surround = getattr(faults.get(fault["kind"]), "surround", None)
        if surround is not None:
            around[fault["id"]] = stack.enter_context(surround(fault, folder, processes_of(spec)))
    if spec["trainer"].get("store") == "object":
        apart = any("TAKEBACK_HOST" in surrounding.variables(0) for surrounding in around.values())
        host = network.address() if apart else LOOPBACK
        around["store"] = stack.enter_context(objectstore.surround(folder, host))
    return around


def start_ranks(
    spec: dict[str, Any],
    folder: Path,
    root: Path,
    recorder: Recorder,
    around: dict[str, Surroundings],
    port: int,
    told: dict[int, dict[str, Any]] | None = None,
) -> dict[int, int]:
    """Fork all ranks, which meet at the store on ``port``; returns the pid of each.

    Args:
        told: if only some are to be started here, these, and what more is told of each.
    """
    ranks, gate = {}, os.pipe()
    told = {number: {} for number in range(processes_of(spec))} if told is None else told
    for number, more in told.items():
        environment = variables(spec, number, port, folder)
        for surrounding in around.values():
            environment |= surrounding.variables(number)
        enter = [partial(wait_at, gate), *(partial(surrounding.enter, number) for surrounding in around.values())]
        output = folder / "stdout" / f"rank-{number}.txt"
        # The repetition must not be equal by having the same parent, nor its ranks by being forks of one.
        afresh = spec["repeat"] > 0 and number == 0
        ranks[number] = rank.start(command(spec, folder), environment, folder, root, output, afresh, enter)
        host = environment.get("TAKEBACK_HOST", LOOPBACK)
        recorder("launched", attempt=ATTEMPT, of_rank=number, of_pid=ranks[number], host=host, **more)
    for end in gate:
        os.close(end)
    return ranks


def wait_at(gate: tuple[int, int]) -> None:
    """In a new rank: wait until all are forked.

    The store's thread, at work for a rank that is there already, holds locks; a fork inherits them, held for ever.
    """
    reading, writing = gate
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)


def preload() -> None:
    """Import all that a rank needs, so that its fork has it. Runs no kernel."""
    import torch._dynamo
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import torch.utils.data  # noqa: F401

    with suppress(ImportError):  # a host that runs another's trainer need not have what ours is made of
        import takeback.trainers.checkpoints.dcp
        import takeback.trainers.reference
        import takeback.trainers.stores.local
        import takeback.trainers.strategies.replicated
        import takeback.trainers.strategies.sharded  # noqa: F401


def host_store() -> Any:
    """The rendezvous store, on a port that the kernel picks."""
    import torch.distributed as dist

    return dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)


def command(spec: dict[str, Any], folder: Path) -> list[str]:
    """The words that start one rank, with settings appended as ``--name value``."""
    fill = {"checkpoints": objectstore.address(spec, folder)}
    fill |= {"backend": spec["backend"], "world": str(spec["world"])}
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
    world = processes_of(spec)
    return {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(ATTEMPT),
        "TAKEBACK_RECORDS": str(folder / "records"),
        "TAKEBACK_ONE_LIFE": "1",
        "TAKEBACK_ARMED": armed(spec["faults"]),
    }


class Watch:
    """Watches the ranks of one attempt: lets the faults strike, ends what hangs."""

    def __init__(
        self, seconds: float, notice: float | None, ranks: dict[int, int], injector: Injector, recorder: Recorder
    ) -> None:
        self.ranks, self.injector, self.recorder = ranks, injector, recorder
        self.alive = {number: Victim(number, pid, os.pidfd_open(pid), number) for number, pid in ranks.items()}
        self.ended_by_us: set[int] = set()
        self.deadline = Deadline(seconds, notice)

    def until_all_have_ended(self, bound: Sequence[int]) -> None:
        with process.told_of_children() as told:
            self.watch(told, bound)

    def watch(self, told: int, bound: Sequence[int]) -> None:
        poll = select.poll()
        for descriptor in (told, *(victim.descriptor for victim in self.alive.values()), *bound):
            poll.register(descriptor, select.POLLIN)
        while self.alive:
            left = self.deadline.left(self.injector.last_strike)
            if not self.ended_by_us and (left <= 0 or self.only_the_stopped_are_left()):
                self.end_the_rest(hung=left <= 0)
            wait = SETTLE if self.ended_by_us else left
            if self.injector.wait is not None:
                wait = min(wait, self.injector.wait)
            ready = {descriptor for descriptor, _ in poll.poll(1000 * wait)}
            if told in ready:
                os.read(told, 512)
            self.heed(ready & set(bound))
            for number, victim in list(self.alive.items()):
                if victim.descriptor in ready:
                    poll.unregister(victim.descriptor)
                    self.reap(number)
            self.injector.look(self.alive)

    def heed(self, ready: set[int]) -> None:
        """What came from whoever asked for this run: nothing can, but for its end."""
        if ready:
            sys.exit("takeback: whoever asked for this run is gone")

    def reap(self, number: int) -> None:
        _, status = os.waitpid(self.ranks[number], 0)
        del self.alive[number]  # its pidfd stays open: a fault may still hold it, and its number must not be another's
        number_of_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        by = "supervisor" if number in self.ended_by_us else "fault" if number in self.injector.struck else "itself"
        how = {"of_rank": number, "of_pid": self.ranks[number], "status": code, "signal": number_of_signal, "by": by}
        self.recorder("exited", attempt=ATTEMPT, **how)
        if code != 0:  # the others now either see it or wait for ever
            self.deadline.within(SETTLE)

    def only_the_stopped_are_left(self) -> bool:
        """Whether nobody is left but victims that a fault has stopped for good: nothing can happen any more."""
        by_us = {number for number, ways in self.injector.struck.items() if any("by" in way for way in ways)}
        return self.alive.keys() <= by_us

    def end_the_rest(self, hung: bool) -> None:
        left = sorted(self.alive)
        after_exit = len(left) < len(self.ranks)
        if clock.left() <= 0:
            self.recorder("not_run", attempt=ATTEMPT, reason=clock.REASON)
        elif hung:
            self.recorder(
                "hang_detected", attempt=ATTEMPT, seconds=self.deadline.seconds, ranks=left, after_exit=after_exit
            )
        for number in left:
            self.ended_by_us.add(number)
            self.alive[number].send(signal.SIGKILL)
