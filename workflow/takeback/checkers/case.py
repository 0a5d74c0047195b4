"""One cell with the evidence of its legs, ready to be compared."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from takeback.checkers import attempts
from takeback.checkers.prepare import number_tables, sample_table, state_table, told_twice
from takeback.checkers.tables import LossTable, SampleTable, StateTable, union
from takeback.evidence import EvidenceError

if TYPE_CHECKING:
    from pyarrow import Table

    from takeback.evidence import Evidence
    from takeback.matrix import Cell

HANDOVER = "changed topology, handover control"
NOTHING_SAVED = "changed topology, nothing saved to hand over"


class Event(NamedTuple):
    """One row of ``events.parquet``."""

    attempt: int
    rank: int
    monotonic: float
    step: int | None
    point: str | None
    text: str

    @property
    def detail(self) -> dict[str, Any]:
        """Further fields of the record, to be read only."""
        return _fields(self.text)


@lru_cache(maxsize=4096)
def _fields(text: str) -> dict[str, Any]:
    """Many ranks of many legs tell the same words."""
    return json.loads(text)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a leg keep what ``function(leg, …)`` has found out about it, for the next cell that uses the leg.

    Other legs among the arguments are known by their id.
    """

    @wraps(function)
    def asked(leg: LegView, *more: Hashable) -> Any:
        key = (function, *(getattr(one, "id", one) for one in more))
        if key not in leg.found:
            leg.found[key] = function(leg, *more)
        return leg.found[key]

    return asked


class LegView:
    """Evidence of one leg, each table prepared at its first use."""

    def __init__(self, evidence: Evidence, whole: LegView | None = None) -> None:
        """Take the evidence; nothing is prepared yet. ``whole``: the leg of which this is one life."""
        self.id, self.whole = evidence.leg_id, whole or self
        self.spec = evidence.spec
        self.world = int(evidence.spec["world"])
        #: How many processes told of it: one a rank, unless a process has several devices.
        self.ranks = int(evidence.spec.get("processes", self.world))
        self.provenance = evidence.provenance
        #: What a checker has found out about this leg and keeps for the next cell that uses it.
        self.found: dict[Hashable, Any] = {}
        self.evidence = evidence

    @cached_property
    def _numbers(self) -> dict[str, LossTable]:
        return self._prepared("losses", lambda table: number_tables(table, self.ranks))

    @property
    def losses(self) -> LossTable:
        """Losses by step and rank."""
        return self._numbers["loss"]

    @cached_property
    def states(self) -> StateTable:
        """State digests by moment, rank and name."""
        return self._prepared("digests", lambda table: state_table(table, self.ranks))

    @cached_property
    def samples(self) -> SampleTable:
        """Consumed samples by step."""
        return self._prepared("ledger", sample_table)

    def ledger(self, step: int) -> dict[int, list[int]]:
        """The samples of one step by rank, in the order in which they were used."""
        rows = self.evidence.table("ledger").select(["rank", "step", "sample_ids"]).to_pylist()
        return {row["rank"]: row["sample_ids"] for row in rows if row["step"] == step}

    def beside(self, name: str) -> LossTable:
        """What was told beside the losses: ``grad_norm`` or ``lr``, by step and rank."""
        return self._numbers[name]

    @cached_property
    def told_twice(self) -> str:
        """What a rank told twice in one attempt, in words; empty if nothing."""
        receipts = Counter((event.attempt, event.rank) for event in self.events("restored"))
        for (_, rank), times in receipts.items():
            if times > 1:
                return f"the resume receipt of rank {rank}"
        losses, digests = self.evidence.table("losses"), self.evidence.table("digests")
        # As many places as records: no two fell into one. (What fills fewer may be of several attempts.)
        places = np.count_nonzero(self.losses.told), np.count_nonzero(self.states.digests)
        return "" if places == (len(losses), len(digests)) else told_twice(losses, digests)

    def _prepared(self, table: str, prepare: Callable[[Table], Any]) -> Any:
        try:
            return prepare(self.evidence.table(table))
        except ValueError as error:
            cure = "remove the leg's folder and run snakemake again"
            raise EvidenceError(f"{self.id}/{table}.parquet: {error}; {cure}") from None

    @cached_property
    def _events(self) -> dict[str, list[Event]]:
        columns = [self.evidence.table("events")[name].to_pylist() for name in ("kind", *Event._fields[:-1], "detail")]
        by_kind: dict[str, list[Event]] = defaultdict(list)
        for kind, *row in zip(*columns, strict=True):
            by_kind[kind].append(Event(*row))
        return by_kind

    def events(self, kind: str) -> list[Event]:
        """Events of one kind, in the order of the table."""
        return self._events.get(kind, [])

    @cached_property
    def strikes(self) -> list[Event]:
        """Of each fault the instant before its first strike: what is told later may be its consequence.

        The receipt that it has struck (``fault_fired``) may come after what the victims' peers tell: nothing waits for
        it, nor do the hosts of several victims for each other.
        """
        return list({event.detail["fault"]: event for event in reversed(self.events("fault_armed"))}.values())

    @cached_property
    def restored(self) -> dict[int, Event]:
        """Resume receipt of each rank, of the first attempt that gave one: what the parent left behind."""
        receipts = self.events("restored")
        first = min((event.attempt for event in receipts), default=0)
        return {event.rank: event for event in receipts if event.attempt == first}

    @cached_property
    def exits(self) -> dict[int, dict[str, Any]]:
        """How each rank of the last attempt ended (detail of its ``exited`` event)."""
        ended = self.events("exited")
        last = max((event.attempt for event in ended), default=0)
        return {e.detail["of_rank"]: e.detail for e in ended if e.attempt == last}


@dataclass(frozen=True, eq=False)
class Case:
    """A cell and the views of four legs: reference and twin, and of the lives two that follow each other.

    Attributes:
        killed: a leg that a fault struck.
        resumed: the leg that starts from it; itself struck, in a cell of several lives, unless it is the last.
        original: where the reference changes its topology itself, a run that stays on the killed one's; else None.
        earlier: the case in which ``killed`` is the resumed leg; None for the first life.
    """

    cell: Cell
    reference: LegView
    twin: LegView
    killed: LegView
    resumed: LegView
    earlier: Case | None = None
    original: LegView | None = None

    @classmethod
    def of(cls, cell: Cell, legs: Mapping[str, LegView]) -> Case:
        """The case of the last two lives of ``cell``, with the earlier ones behind it; ``legs`` by leg id.

        A leg that its launcher has started again has several lives; one that should have been and was not is followed
        by a life of which there is no evidence.
        """
        reference, twin = legs[cell.reference.id], legs[cell.twin.id]
        original = legs[cell.original.id] if cell.original else None
        lives = [life for leg in cell.lives for life in attempts.lives_of(legs[leg.id])]
        if len(lives) < 2:
            lives.append(attempts.no_life(lives[0]))
        case = None
        for killed, resumed in itertools.pairwise(lives):
            case = cls(cell, reference, twin, killed, resumed, case, original)
        return case

    @property
    def goes_to_the_end(self) -> bool:
        """Whether nothing strikes the resumed leg."""
        return not self.resumed.spec["faults"]

    @property
    def never_began(self) -> bool:
        """Whether the resumed leg was struck in its turn before it had restored anything."""
        return not (self.goes_to_the_end or self.resumed.restored or len(self.resumed.losses.steps))

    @cached_property
    def roles(self) -> dict[str, LegView]:
        """Legs by their role, in the order in which they are looked at."""
        return {
            "reference": self.reference,
            "twin": self.twin,
            "killed leg": self.killed,
            "resumed leg": self.resumed,
        }

    @cached_property
    def restored_step(self) -> int:
        """Step from which the resumed leg goes on; 0 without a receipt."""
        return max((event.step or 0 for event in self.resumed.restored.values()), default=0)

    @cached_property
    def due(self) -> np.ndarray:
        """int64[n]: steps after the restored one that the resumed leg or the reference told.

        Of a leg that is struck in its turn, those which all its ranks told.
        """
        after, mine, theirs = self.restored_step, self.resumed.losses, self.reference.losses
        if not self.goes_to_the_end:
            return mine.steps[(mine.steps > after) & mine.told.all(axis=1)]
        return union(mine.steps[mine.steps > after], theirs.steps[theirs.steps > after])

    @cached_property
    def done_twice(self) -> np.ndarray:
        """int64[n]: steps between the checkpoint and the kill, which were done again."""
        first = self.killed.losses.steps
        return np.intersect1d(first[first > self.restored_step], self.due, assume_unique=True)

    @property
    def fault_step(self) -> int:
        """Last step up to which the killed leg is an uninterrupted run: that at which a victim was held.

        A fault at which nobody is held lets the ranks do what they can: what they told is then the measure.
        """
        held = [event.step or 0 for event in self.killed.events("held")]
        return max(held) if held else int(max(self.killed.losses.steps, default=0))

    def own_names(self, left: LegView, right: LegView) -> frozenset[str] | None:
        """None if two legs can be compared rank by rank; else the names of per-rank state."""
        return None if left.world == right.world else self.per_rank_names

    @cached_property
    def per_rank_names(self) -> frozenset[str]:
        """Names of state that each rank has of its own: what differs over the ranks of the reference.

        A reference of one rank can't tell; then only random streams (``rng.*``) may be per-rank.
        """
        if self.reference.ranks > 1:
            return self.reference.states.per_rank
        return frozenset(name for name in self.resumed.states.per_rank if name.startswith("rng."))

    @property
    def by_handover(self) -> bool:
        """Whether the reference has the topology of the resumed leg from the restored step on, and another than
        the killed leg's steps up to the fault: these are then no measure for each other.
        """
        return self.cell.against in (HANDOVER, NOTHING_SAVED)
