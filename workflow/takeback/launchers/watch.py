"""Watches processes that others than the supervisor have started: they come and go, and are known by pid."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from takeback import clock
from takeback.faults import Surroundings, Victim
from takeback.launchers import agents
from takeback.launchers.agents import Process
from takeback.launchers.deadline import Deadline
from takeback.launchers.elastic import ElasticInjector
from takeback.launchers.local import LOOPBACK
from takeback.launchers.recorder import Recorder


class Watched:
    """Processes of one leg, from the first start to the end of the last.

    Args:
        nodes: how many there are to begin with.
        around: surroundings by fault id.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        folder: Path,
        root: Path,
        recorder: Recorder,
        around: dict[str, Surroundings],
        nodes: int,
    ) -> None:
        self.spec, self.folder, self.root, self.recorder, self.around = spec, folder, root, recorder, around
        self.nodes = nodes
        self.processes: dict[int, Process] = {}
        self.injector = ElasticInjector(spec["faults"], folder, nodes, around, recorder, self.processes, self)
        self.deadline = Deadline(spec["deadline"], spec.get("notice"))

    def look_for_workers(self) -> None:
        """Take those that have come into :attr:`processes`."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Asked when no process is alive: whether none will come."""
        return True

    @property
    def alive(self) -> dict[int, Victim]:
        return {pid: one.victim for pid, one in self.processes.items() if one.ended is None}

    @property
    def ended_by_us(self) -> bool:
        return any(one.by_us for one in self.processes.values())

    def watch(self, bound: Sequence[int]) -> None:
        """Until the last process has ended; at the deadline they are ended.

        Raises:
            SystemExit: one of the descriptors ``bound`` has become readable: whoever asked for the run is gone.
        """
        poll = select.poll()
        for descriptor in bound:
            poll.register(descriptor, select.POLLIN)
        watched: dict[int, Process] = {}
        timed_out = False
        while (alive := self.alive) or not (timed_out or self.is_over()):
            for pid in alive:
                one = self.processes[pid]
                if one.victim.descriptor not in watched:
                    watched[one.victim.descriptor] = one
                    poll.register(one.victim.descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(1000 * min(self.injector.wait, self.left()))}
            if ready & set(bound):
                sys.exit("takeback: whoever asked for this run is gone")
            before = time.monotonic()
            self.look_for_workers()
            # Asked afterwards: those just found were started when others had ended, perhaps since the poll above.
            for descriptor in {descriptor for descriptor, _ in poll.poll(0)} - set(bound):
                poll.unregister(descriptor)
                watched[descriptor].end(before)
            self.injector.look(self.alive)
            if self.left() <= 0 and not timed_out:
                timed_out = True
                self.end_the_rest()

    def left(self) -> float:
        return self.deadline.left(self.injector.last_strike)

    def end_the_rest(self) -> None:
        left = [one for one in self.processes.values() if one.ended is None]
        ranks = sorted(one.rank for one in left if one.rank is not None)
        nodes = sorted(one.node for one in left if one.rank is None)
        if clock.left() <= 0:
            self.recorder("not_run", reason=clock.REASON)
        else:
            after = len(left) < len(self.processes)
            self.recorder("hang_detected", seconds=self.deadline.seconds, ranks=ranks, agents=nodes, after_exit=after)
        agents.end(left)

    def record_rank(
        self, one: Process, number: int, attempt: int, node: int, ended: float | None, by: str, **more: Any
    ) -> None:
        """How one rank was started, and how and by whom it was ended."""
        who = {"attempt": attempt, "of_rank": number, "of_pid": one.pid}
        more |= {"of_agent": node, "world": one.world, "command": one.command, "host": self.host(node)}
        self.recorder("launched", **who, **more, **at(one.began))
        self.recorder("exited", **who, **one.how(), by=by, **at(ended))

    def by(self, one: Process, launcher: bool) -> str:
        """Who ended a process: we, a fault, its launcher, if that says so, or itself (or somebody else)."""
        if one.by_us:
            return "supervisor"
        if one.pid in self.injector.struck:
            return "fault"
        return "launcher" if launcher else "itself"

    def host(self, node: int) -> str:
        """The address of a node."""
        given: dict[str, str] = {}
        for surrounding in self.around.values():
            given |= surrounding.variables(node)
        return given.get("TAKEBACK_HOST", LOOPBACK)


def at(mono: float) -> dict[str, float]:
    """The times of a record that is written later than it happened."""
    return {"mono": mono, "wall": mono - time.monotonic() + time.time()}
