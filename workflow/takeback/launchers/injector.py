"""Strikes the planned faults of one attempt: where a victim holds itself, when a time has come, or at the end."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from takeback import faults
from takeback.faults import Injection, Surroundings, Victim
from takeback.launchers import process
from takeback.launchers.recorder import Recorder
from takeback.leg import ANYWHERE, victims_of

TICK = 0.05  # s between two looks at the records while a fault waits; a rank that stops is seen at once
SOON = 0.005  # the same while one waits for a step to strike at random: nobody stops there
OVERDUE = 3  # steps after its own at which victims hold themselves for a random fault: one more is left (matrix.LATEST)
START_UP = 0.5  # s within which a run that is struck at a random instant of its start has begun its first step


def armed(planned: list[dict[str, Any]]) -> str:
    """``TAKEBACK_ARMED``: the faults for which ranks must hold themselves; each knows by its number whether it must.

    Which rank an agent has started is known to itself alone: all hold themselves for a fault of agents or nodes.
    """
    waiting = []
    for fault in planned:
        if fault["point"] not in ANYWHERE:
            does = {"acts": fault["kind"], "with": faults.parameters(fault)} if acts(fault) else {}
            where = {name: fault[name] for name in ("id", "point", "step", "attempt")}
            waiting.append({**where, "ranks": fault.get("ranks", "all"), **does})
        elif holds(fault):  # the run may have become faster since the instant was set
            where = {"id": fault["id"], "point": "step", "step": fault["step"] + OVERDUE, "attempt": fault["attempt"]}
            waiting.append({**where, "ranks": fault.get("ranks", "all")})
    return json.dumps(waiting)


def holds(fault: dict[str, Any]) -> bool:
    """Whether victims hold themselves for it somewhere: for a random one where it is overdue."""
    return fault["point"] not in ANYWHERE or bool(fault["point"] == "random" and fault["step"])


def acts(fault: dict[str, Any]) -> bool:
    """Whether a victim does it to itself."""
    return hasattr(faults.get(fault["kind"]), "act")


def ends_by(fault: dict[str, Any]) -> list[dict[str, Any]]:
    """How the victims of a fault may end; a word in place of a number is the parameter of that name."""
    given = faults.parameters(fault)
    ways = faults.get(fault["kind"]).ENDS_BY
    return [{key: value if key == "by" else given.get(value, value) for key, value in way.items()} for way in ways]


class Injector:
    """The faults of one attempt, and what of them has been done.

    Args:
        planned: the leg's faults.
        folder: the leg's folder.
        world: number of ranks.
        around: surroundings by fault id.
        recorder: where each strike is told, before and after.
        attempt: of the ranks to be struck; None where it is known afterwards.
    """

    def __init__(
        self,
        planned: list[dict[str, Any]],
        folder: Path,
        world: int,
        around: dict[str, Surroundings],
        recorder: Recorder,
        attempt: int | None,
    ) -> None:
        self.folder, self.world, self.around, self.recorder, self.attempt = folder, world, around, recorder, attempt
        self.began = time.monotonic()
        #: Faults that have not struck yet, those among them that wait for a step to strike at random, and the ids of
        #: those for which it has come.
        self.waiting = {fault["id"]: fault for fault in planned if fault["point"] != "end"}
        self.random: list[dict[str, Any]] = []
        self.drawn: set[str] = set()
        self.first_step: dict[str, Any] | None = None
        self.at_end = [fault for fault in planned if fault["point"] == "end"]
        #: (fault, rank) of all that will hold themselves at a point; the first of a fault makes it strike all.
        self.armed = self._all_armed(planned)
        #: Strikes to come by the clock: (monotonic s, number, what to do).
        self.due: list[tuple[float, int, Any]] = []
        #: Those whom a fault is to end, and how.
        self.struck: dict[int, list[dict[str, Any]]] = {}
        #: Ranks that came by a point after its fault had struck: they hold themselves, or are about to.
        self.loose: set[int] = set()
        self.last_strike: float | None = None  # monotonic s
        self.read: dict[int, int] = {}
        for fault in self.waiting.values():
            if fault["point"] == "time":
                self._later(self.began + fault["seconds"], fault)
            elif fault["point"] == "random" and not fault["step"]:
                self._later(self.began + fault["pause"] * START_UP, fault)
            elif fault["point"] == "random":
                self.random.append(fault)

    #: What a fault may ask something of that only this launcher can do.
    launcher: Any = None

    @property
    def wait(self) -> float | None:
        """Seconds until the next look is due; None if nothing waits any more."""
        waits = [max(0.0, self.due[0][0] - time.monotonic())] if self.due else []
        if self.armed or self.random or self.loose:
            waits.append(SOON if self.random else TICK)
        return min(waits, default=None)

    def _all_armed(self, planned: list[dict[str, Any]]) -> set[tuple[str, int]]:
        return {(fault["id"], rank) for fault in filter(holds, planned) for rank in victims_of(fault, self.world)}

    def look(self, alive: dict[int, Victim]) -> None:
        """Strike what is due; ``alive`` are the ranks that have not ended, by number."""
        while self.due and self.due[0][0] <= time.monotonic():
            _, _, what = heapq.heappop(self.due)
            if isinstance(what, dict):
                self._strike_unheld(what, alive)
            else:
                self._go_on(*what)
        self.armed = self._still_armed(alive)
        for number in list(alive):
            for record in self._new_records(number):
                self._answer(number, record, alive)
        for number in self.loose & alive.keys():
            self._release(number, alive)

    def _still_armed(self, alive: dict[int, Victim]) -> set[tuple[str, int]]:
        return {(fault, rank) for fault, rank in self.armed if rank in alive}

    def _release(self, number: int, alive: dict[int, Victim]) -> None:
        """Let a rank go on that has come too late for its fault, unless it has gone on and holds itself for another."""
        if process.is_stopped(alive[number].pid):
            records = self._new_records(number)  # written before it stops
            if not records:
                self.loose.discard(number)
                alive[number].let_go()
            for record in records:
                self._answer(number, record, alive)

    def finish(self) -> None:
        """All ranks have ended: strike what they left behind."""
        for fault in self.at_end:
            self._strike(fault, {}, None)

    def _answer(self, number: int, record: dict[str, Any], alive: dict[int, Victim]) -> None:
        """One record of a rank: it holds itself for a fault, or it has reached the step of a random one."""
        if record["kind"] == "step":
            self.first_step = self.first_step or record
            for fault in self.random:
                if record["step"] == fault["step"] and fault["id"] not in self.drawn:
                    self.drawn.add(fault["id"])
                    # Within two steps' time from there: in a step, in a save, between two records.
                    self._later(time.monotonic() + fault["pause"] * 2 * self._step_seconds(record), fault)
            return
        self.armed.discard((record["fault"], number))
        self.loose.discard(number)
        fault = self.waiting.get(record["fault"])
        if fault is None:
            if not any("by" in way for way in self.struck.get(number, [])):
                self.loose.add(number)
        # The record is written just before the process stops itself.
        elif process.wait_until_stopped(record["pid"]):
            self._strike(fault, alive, {"number": number, "rank": alive[number].rank, **record})

    def _step_seconds(self, record: dict[str, Any]) -> float:
        """What a step took so far; the first of a run takes what it takes to start."""
        steps = record["step"] - self.first_step["step"]
        return (record["mono"] - (self.first_step["mono"] if steps else self.began)) / (steps or 1)

    def _strike_unheld(self, fault: dict[str, Any], alive: dict[int, Victim]) -> None:
        """By the clock, unless a victim has come to where it holds itself."""
        if fault["id"] in self.waiting:
            self._strike(fault, alive, None)

    def _strike(self, fault: dict[str, Any], alive: dict[int, Victim], held: dict[str, Any] | None) -> None:
        self.random = [other for other in self.random if other is not fault]
        module = faults.get(fault["kind"])
        victims = self._victims(fault, alive, held, getattr(module, "EACH", False))
        around = self.around.get(fault["id"], Surroundings())
        struck = {number for number, one in alive.items() if one in victims}
        self.loose -= struck
        injection = Injection(fault, victims, self.folder, around, list(alive.values()), launcher=self.launcher)
        receipt = {
            "attempt": self.attempt,
            "fault": fault["id"],
            "action": fault["kind"],
            "step": held["step"] if held else fault["step"],
            "point": fault["point"],
            "victims": [self._described(victim) for victim in victims],
            "ends_by": self._ends_by(fault),
            "proves": getattr(module, "PROVES", {}),
        }
        where = {"held": {"rank": held["rank"], "pid": held["pid"]}} if held else {}
        self.recorder("fault_armed", **receipt, **where)
        if receipt["ends_by"]:
            self.struck |= dict.fromkeys(struck, receipt["ends_by"])
        self._go_on(module.strike(injection), injection, receipt, "fault_fired")
        self.last_strike = time.monotonic()
        if held and held["number"] in alive.keys() - struck:
            self._spare(held["number"], alive, victims)

    def _spare(self, number: int, alive: dict[int, Victim], victims: list[Victim]) -> None:
        """A rank has held itself for others."""
        alive[number].let_go()

    def _ends_by(self, fault: dict[str, Any]) -> list[dict[str, Any]]:
        return ends_by(fault)

    @staticmethod
    def _described(victim: Victim) -> dict[str, Any]:
        """A victim as the receipt names it."""
        return {"rank": victim.rank, "pid": victim.pid}

    def _victims(
        self, fault: dict[str, Any], alive: dict[int, Victim], held: dict[str, Any] | None, each: bool
    ) -> list[Victim]:
        """Whom the fault strikes now; one that strikes each by itself waits on for the others."""
        if fault in self.at_end:
            return []
        if each and held is not None:
            if not any(fault["id"] == waits for waits, _ in self.armed):
                del self.waiting[fault["id"]]
            return [alive[held["number"]]]
        self.waiting.pop(fault["id"])
        return self._named(fault, alive)

    def _named(self, fault: dict[str, Any], alive: dict[int, Victim]) -> list[Victim]:
        """Those of the living whom a fault names."""
        return [alive[number] for number in victims_of(fault, self.world) if number in alive]

    def _go_on(
        self, acts: Iterator[float] | None, injection: Injection, receipt: dict[str, Any], kind: str = "fault_went_on"
    ) -> None:
        """Do what a fault does next, tell it, and come back when it asks for it."""
        pause = next(acts, None) if acts is not None else None
        self.recorder(kind, **receipt, seen=injection.seen)
        if pause is not None:
            self._later(time.monotonic() + pause, (acts, injection, receipt))

    def _file_of(self, number: int) -> Path:
        """The records of a rank."""
        return self.folder / "records" / f"attempt{self.attempt}-rank{number}.jsonl"

    def _later(self, when: float, what: Any) -> None:
        heapq.heappush(self.due, (when, id(what), what))

    def _new_records(self, number: int) -> list[dict[str, Any]]:
        """Records that a rank has written since the last look, and that a fault may wait for."""
        if not (self.armed or self.random or self.loose):
            return []
        try:
            with self._file_of(number).open("rb") as file:
                file.seek(self.read.get(number, 0))
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.read[number] = self.read.get(number, 0) + len(whole)
        # A look at the text first: parsing every record costs more than the run.
        wanted = (b'"kind": "held"', b'"kind": "step"') if self.random else (b'"kind": "held"',)
        return [json.loads(line) for line in whole.splitlines() if any(kind in line[:40] for kind in wanted)]
