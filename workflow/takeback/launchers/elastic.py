"""Faults under a launcher that starts the ranks itself: whom they strike is found by rank, agent or node."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from takeback import faults as kinds
from takeback.faults import Victim
from takeback.launchers import process
from takeback.launchers.agents import Process
from takeback.launchers.injector import SOON, TICK, Injector
from takeback.launchers.recorder import Recorder
from takeback.leg import victims_of, whom

PATIENCE = 10.0  # s for an agent to do something about what struck it


class ElasticInjector(Injector):
    """As its base, of processes that are known by pid, and come and go.

    Args:
        processes: agents and workers by pid; it grows.
        nodes: how many there are to begin with.
        launcher: what faults may ask something of.
    """

    def __init__(
        self,
        planned: list[dict[str, Any]],
        folder: Path,
        nodes: int,
        around: dict[str, kinds.Surroundings],
        recorder: Recorder,
        processes: dict[int, Process],
        launcher: Any,
    ) -> None:
        super().__init__(planned, folder, nodes, around, recorder, None)
        self.processes, self.launcher = processes, launcher
        #: Ranks that held themselves for others, these, and when they go on at the latest (monotonic s).
        self.spared: dict[int, tuple[list[Victim], float]] = {}

    @property
    def wait(self) -> float:
        """Workers come and go: there is always something to look for."""
        return min(super().wait or TICK, SOON if self.random else TICK)

    def look(self, alive: dict[int, Victim]) -> None:
        """As the base; who has held itself for agents goes on when they have ended, or their word has reached it."""
        super().look(alive)
        for number, (agents, latest) in list(self.spared.items()):
            gone = not any(agent.pid in alive for agent in agents)
            if gone or time.monotonic() > latest or process.is_pending(number, signal.SIGTERM):
                del self.spared[number]
                if number in alive:
                    alive[number].let_go()

    def _spare(self, number: int, alive: dict[int, Victim], victims: list[Victim]) -> None:
        self.spared[number] = [one for one in victims if one.rank is None], time.monotonic() + PATIENCE

    def _all_armed(self, planned: list[dict[str, Any]]) -> set[tuple[str, int]]:
        return {(fault["id"], -1) for fault in planned}

    def _still_armed(self, alive: dict[int, Victim]) -> set[tuple[str, int]]:
        return self.armed

    def _named(self, fault: dict[str, Any], alive: dict[int, Victim]) -> list[Victim]:
        kind = whom(fault)
        if kind == "ranks":
            there = [self.processes[pid] for pid, one in alive.items() if one.rank is not None]
            return [p.victim for p in there if p.rank in victims_of(fault, p.world) and p.restarts == fault["attempt"]]
        nodes = victims_of(fault, self.world)
        return [one for one in alive.values() if one.node in nodes and (kind == "nodes" or one.rank is None)]

    def _ends_by(self, fault: dict[str, Any]) -> list[dict[str, Any]]:
        """An agent that is told to go stops its ranks and ends with status 1, by an exception (SignalException).

        How a rank ended that was killed may be told to its agent alone, which logs only the first of several, and to
        nobody else before Linux 6.15; that it ended when it was struck is known.
        """
        ways = super()._ends_by(fault)
        if ways and whom(fault) == "agents":
            return [*ways, {"status": 1}]
        return [*ways, {"known": "nobody"}] if {"signal": signal.SIGKILL} in ways else ways

    @staticmethod
    def _described(victim: Victim) -> dict[str, Any]:
        return {"rank": victim.rank, "pid": victim.pid, "node": victim.node}

    def _file_of(self, number: int) -> Path:
        one = self.processes[number]
        return self.folder / "records" / f"attempt{one.restarts}-rank{one.rank}-pid{number}.jsonl"
