"""Hand-made evidence of one cell, consistent and equal until a test damages it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from takeback import bits, matrix, verdicts
from takeback.evidence import Evidence
from takeback.leg import processes_of
from takeback.matrix import Expectation
from takeback.meaning import usual_settings

STEPS, SAVE_EVERY, EPOCH, GLOBAL_BATCH = 24, 4, 8, 8
STATE = [
    *("model.w", "model.b", "optimizer.exp_avg.w", "optimizer.exp_avg_sq.w", "optimizer.step.w"),
    *("optimizer.group.0.lr", "schedule.last_step", "ema.w", "sampler.epoch", "sampler.position"),
    *("rng.torch", "rng.python", "best.loss", "step"),
]
FINGERPRINT = {"cpu_model": "Example CPU", "cpu_capability": "AVX512", "threads": 1, "torch": "2.13.0"}
SIGKILL = 9
_made: dict[str, Evidence] = {}


def digest_of(*words: Any) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def loss_at(step: int) -> float:
    return float(np.float32(3.0 * 0.97**step))


def bits_at(step: int) -> int:
    return int(bits.bits_of(np.array([loss_at(step)]), "float32")[0])


class Scene:
    """Evidence of the four legs of one cell.

    Args:
        restored: step that the resumed leg restores; by default that of the newest checkpoint.
        own_rng: whether each rank has random streams of its own.
        digests, ledger: whether the trainer tells its state and its samples.
        at_each_step: whether the state is digested after each step, too.
        then: further lives, which are struck in their turn: the legs ``life 1``, ``life 2``, …
        commits: whether rank 0 tells ``committed`` when the new checkpoint is the one that a restart finds.
    """

    def __init__(
        self,
        *,
        backend: str = "gloo",
        world: int = 2,
        resume_world: int | None = None,
        kill_step: int = 19,
        point: str = "step",
        ranks: str | list[int] = "last",
        restored: int | None = None,
        own_rng: bool = False,
        digests: bool = True,
        ledger: bool = True,
        at_each_step: bool = False,
        commits: bool = False,
        settings: dict[str, Any] | None = None,
        resume_settings: dict[str, Any] | None = None,
        expect: Expectation | None = None,
        control: str | None = None,
        steps: int = STEPS,
        then: list[dict[str, Any]] | None = None,
        resume_hardware: dict[str, Any] | None = None,
    ) -> None:
        self.own_rng, self.digests, self.ledger, self.at_each_step = own_rng, digests, ledger, at_each_step
        self.steps, self.commits = steps, commits
        block = {
            "backend": backend,
            "world": world,
            "resume_world": resume_world or world,
            "kill_step": kill_step,
            "point": point,
            "fault": {"kind": "sigkill", "ranks": ranks},
            "trainer": settings or {},
            "resume_trainer": resume_settings or {},
            **({"then": then} if then else {}),
            "resume_hardware": resume_hardware,
        }
        (axes,) = matrix.product(block)
        self.cell = matrix.cell_of(
            axes,
            trainer={"command": ["train"], "settings": {"steps": steps}},
            usual={**usual_settings(), "save_every": SAVE_EVERY},
            neutral=["timeout"],
            expect=expect or Expectation("equal", "the whole state is in the checkpoint"),
            control=control,
            deadline=60.0,
        )
        done = point == "saved" or (commits and point == "save.pointer")
        committed = (kill_step if done else kill_step - 1) // SAVE_EVERY * SAVE_EVERY
        lives, start = {}, committed
        for number, (life, leg) in enumerate(zip(then or [], self.cell.lives[1:], strict=False), 1):
            lives[f"life {number}"] = self._killed(leg, life["kill_step"], life.get("point", "step"), start)
            start = max(start, (life["kill_step"] - 1) // SAVE_EVERY * SAVE_EVERY)
        restored = start if restored is None else restored
        self.evidence = {
            "reference": self._whole(self.cell.reference),
            "twin": self._whole(self.cell.twin),
            "killed": self._killed(self.cell.killed, kill_step, point),
            **lives,
            "resumed": self._whole(self.cell.resumed, restored, 300.0),
            **({"original": self._whole(self.cell.original)} if self.cell.original else {}),
        }

    def judge(self) -> dict[str, Any]:
        return verdicts.judge(self.cell, {one.leg_id: one for one in self.evidence.values()})

    def change(self, leg: str, table: str, where: Callable[[pd.DataFrame], Any] | None = None, **values: Any) -> Scene:
        """Set columns of the rows that ``where`` chooses (default: all)."""
        frame = getattr(self.evidence[leg], table).copy()
        chosen = np.ones(len(frame), bool) if where is None else np.asarray(where(frame), bool)
        assert chosen.any(), f"no row of {leg}/{table} to damage"
        for column, value in values.items():
            frame.loc[chosen, column] = value
        return self._put(leg, table, frame)

    def drop(self, leg: str, table: str, where: Callable[[pd.DataFrame], Any]) -> Scene:
        frame = getattr(self.evidence[leg], table)
        chosen = np.asarray(where(frame), bool)
        assert chosen.any(), f"no row of {leg}/{table} to drop"
        return self._put(leg, table, frame[~chosen].reset_index(drop=True))

    def add_event(self, leg: str, kind: str, *, rank: int = -1, mono: float = 1000.0, step: Any = None,
                  point: str | None = None, **detail: Any) -> Scene:  # fmt: skip
        frame = pd.concat([self.evidence[leg].events, _events([_event(kind, rank, mono, step, point, **detail)])])
        return self._put(leg, "events", frame.reset_index(drop=True))

    def fingerprint(self, leg: str, **changes: Any) -> Scene:
        provenance = {"fingerprint": FINGERPRINT | changes}
        self.evidence[leg] = dataclasses.replace(self.evidence[leg], provenance=provenance)
        return self

    def not_run(self, leg: str, reason: str) -> Scene:
        """The leg left empty tables and one event."""
        for table in ("losses", "ledger", "digests", "events"):
            self._put(leg, table, getattr(self.evidence[leg], table).iloc[:0])
        return self.add_event(leg, "not_run", reason=reason)

    def _put(self, leg: str, table: str, frame: pd.DataFrame) -> Scene:
        self.evidence[leg] = dataclasses.replace(self.evidence[leg], **{table: frame})
        return self

    def _whole(self, leg: matrix.Leg, start: int = 0, clock: float = 100.0) -> Evidence:
        events = []
        for rank in range(processes_of(leg.spec)):
            events.append(_event("launched", -1, clock, of_rank=rank))
            events.append(_event("restored", rank, clock + 1, start, epoch=start // EPOCH))
            if start < self.steps:
                events.append(_event("first_step", rank, clock + 1.5, start + 1))
            for step in range(start + 1, self.steps + 1):
                if step % SAVE_EVERY == 0:
                    events += self._saved(rank, clock + 1 + 0.1 * step, step)
            events.append(_event("finished", rank, clock + 90, self.steps))
            events.append(_exited(rank, clock + 91, status=0))
        moments = [("loaded", start), *self._moments(start, self.steps), ("end", self.steps)]
        return self._evidence(leg, range(start + 1, self.steps + 1), moments, events)

    def _killed(self, leg: matrix.Leg, kill: int, point: str, start: int = 0) -> Evidence:
        done = kill if point in ("step", "saved", "random") or point.startswith("save.") else kill - 1
        ranks = leg.faults[0]["ranks"]
        victims = {"all": list(range(processes_of(leg.spec))), "last": [processes_of(leg.spec) - 1]}.get(
            ranks if isinstance(ranks, str) else "", ranks
        )
        events, struck = [], 103.0 + 0.1 * kill
        saves = [s for s in range(start + 1, done + 1) if s % SAVE_EVERY == 0 and (s < kill or point == "saved")]
        for rank in range(processes_of(leg.spec)):
            if point != "load":
                events.append(_event("restored", rank, 101.0, start, epoch=start // EPOCH))
            if done > start:
                events.append(_event("first_step", rank, 101.05, start + 1))
            events += [event for step in saves for event in self._saved(rank, 101 + 0.1 * step, step)]
            if point == "save.pointer":
                events += self._saved(rank, struck - 0.3, kill)[:-1]
            if rank in victims:
                events.append(_event("held", rank, struck - 0.2, kill or None, point, fault="0"))
                events.append(_exited(rank, struck + 0.1, signal=SIGKILL, by="fault"))
            else:
                text = "Connection closed by peer"
                events.append(_event("error", rank, struck + 0.25, type="RuntimeError", text=text))
                events.append(_exited(rank, struck + 0.5, status=1))
        told = [{"rank": rank, "pid": 100 + rank} for rank in victims]
        receipt = {"fault": "0", "action": "sigkill", "victims": told, "ends_by": [{"signal": SIGKILL}]}
        events.append(_event("fault_armed", -1, struck, **receipt))
        events.append(_event("fault_fired", -1, struck + 0.001, **receipt))
        moments = [] if point == "load" else [("loaded", start)]
        moments += [m for m in self._moments(start, done) if m[0] == "step" or m[1] in saves]
        return self._evidence(leg, range(start + 1, done + 1), moments, events)

    def _saved(self, rank: int, mono: float, step: int) -> list[dict]:
        told = [_event("committed", rank, mono - 0.01, step)] if self.commits and rank == 0 else []
        return [*told, _event("saved", rank, mono, step)]

    def _moments(self, start: int, end: int) -> list[tuple[str, int]]:
        moments = [("step", s) for s in range(start + 1, end + 1) if self.at_each_step]
        return moments + [("saved", s) for s in range(start + 1, end + 1) if s % SAVE_EVERY == 0]

    def _evidence(self, leg: matrix.Leg, steps: range, moments: list[tuple[str, int]], events: list[dict]) -> Evidence:
        """Made once and shared by all scenes: damage is done to copies."""
        key = repr((leg.id, steps, moments, events, self.own_rng, self.digests, self.ledger))
        if key not in _made:
            _made[key] = self._make(leg, steps, moments, events)
        return _made[key]

    def _make(self, leg: matrix.Leg, steps: range, moments: list[tuple[str, int]], events: list[dict]) -> Evidence:
        ranks = range(processes_of(leg.spec))
        losses = [_loss(rank, step) for rank in ranks for step in steps]
        ledger = [_samples(rank, step, len(ranks)) for rank in ranks for step in steps] if self.ledger else []
        digests = [
            {"attempt": 0, "rank": rank, "moment": moment, "step": step, "order": order, "name": name,
             "dtype": "float32", "shape": "4",
             "digest": digest_of(name, step, rank if self.own_rng and name.startswith("rng.") else 0)}
            for rank in ranks for moment, step in (moments if self.digests else []) for order, name in enumerate(STATE)
        ]  # fmt: skip
        return Evidence(
            leg.id,
            leg.spec,
            pd.DataFrame(losses, columns=list(_loss(0, 1))),
            pd.DataFrame(ledger, columns=["attempt", "rank", "step", "epoch", "sample_ids"]),
            pd.DataFrame(
                digests, columns=["attempt", "rank", "moment", "step", "order", "name", "dtype", "shape", "digest"]
            ),
            _events(events),
            {"fingerprint": dict(FINGERPRINT)},
        )


def _loss(rank: int, step: int) -> dict[str, Any]:
    return {"attempt": 0, "rank": rank, "step": step, "epoch": (step - 1) // EPOCH, "micro_batches": 1,
            "loss": loss_at(step), "loss_bits": bits_at(step), "loss_dtype": "float32", "lr": 1e-3,
            "grad_norm": 1.0, "grad_norm_bits": 0, "samples": "0" * 16}  # fmt: skip


def _samples(rank: int, step: int, world: int) -> dict[str, Any]:
    epoch, place = divmod(step - 1, EPOCH)
    shuffled = np.random.default_rng(epoch).permutation(EPOCH * GLOBAL_BATCH)
    ids = shuffled[place * GLOBAL_BATCH : (place + 1) * GLOBAL_BATCH]
    return {"attempt": 0, "rank": rank, "step": step, "epoch": epoch, "sample_ids": ids[rank::world]}


def _event(kind: str, rank: int, mono: float, step: Any = None, point: str | None = None, **detail: Any) -> dict:
    return {"attempt": 0, "rank": rank, "pid": 100 + rank, "monotonic": mono, "wall": 1e9 + mono, "kind": kind,
            "step": step, "point": point, "detail": json.dumps(detail)}  # fmt: skip


def _exited(rank: int, mono: float, status: int | None = None, signal: int | None = None, by: str = "itself") -> dict:
    return _event("exited", -1, mono, of_rank=rank, of_pid=100 + rank, status=status, signal=signal, by=by)


def _events(rows: list[dict]) -> pd.DataFrame:
    return pd.DataFrame(rows).astype({"step": "float64"})
