"""From one leg whose launcher starts its ranks again to its lives, each judged as if it were a leg of its own.

A life is an attempt in which a rank has restored something, or which was struck. What came to nothing before that is a
burned restart: it counts (:mod:`takeback.checkers.launcher`), and is no life, unless it was the last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from takeback.leg import LOCAL

if TYPE_CHECKING:
    from takeback.checkers.case import Event, LegView
    from takeback.evidence import Evidence


def lives_of(leg: LegView) -> list[LegView]:
    """The lives of a leg in their order; of one that is never started again, itself."""
    if leg.spec.get("launcher", LOCAL) == LOCAL:
        return [leg]
    groups = groups_of(leg)
    lives = sorted(_began(leg) & groups.keys()) or [0]
    last = max(groups, default=0)
    if last not in lives:
        lives.append(last)
    strikes = _strikes(leg, lives)
    found: list[LegView] = []
    for number in lives:
        world = max((event.detail["world"] for event in groups.get(number, [])), default=leg.world)
        changes = {"world": world, "faults": strikes[number]}
        if found:
            changes["parent"] = found[-1].id
        found.append(_life(leg, number, changes))
    return found


def groups_of(leg: LegView) -> dict[int, list[Event]]:
    """The ``launched`` events of each worker group."""
    groups: dict[int, list[Event]] = {}
    for event in leg.events("launched"):
        groups.setdefault(event.attempt, []).append(event)
    return groups


def restarts_of(launched: list[Event]) -> int:
    """Restarts that the agents of a group had counted: the most, as each counts the failures that it has seen."""
    return max(event.detail["restarts"] for event in launched)


def burned(leg: LegView) -> list[int]:
    """Groups in which no rank has restored anything although they cost a restart; the first has cost none.

    A group that is only stopped for one with more nodes costs none either.
    """
    restarts = {number: restarts_of(launched) for number, launched in groups_of(leg).items()}
    lived = {restarts[number] for number in _began(leg) & restarts.keys()} | {0}
    return sorted(number for number, count in restarts.items() if count not in lived)


def _began(leg: LegView) -> set[int]:
    """Attempts in which a rank has restored something, or which were struck."""
    return {event.attempt for kind in ("restored", "fault_fired") for event in leg.events(kind)}


def no_life(leg: LegView) -> LegView:
    """What follows a leg that its launcher did not start again."""
    return _life(leg, None, {"faults": [], "parent": leg.id})


def _strikes(leg: LegView, lives: list[int]) -> dict[int, list[dict[str, Any]]]:
    """The faults of each life: those which struck in it; one that never struck was due in the first."""
    fired = {event.detail["fault"]: event.attempt for event in leg.events("fault_fired")}
    strikes: dict[int, list[dict[str, Any]]] = {number: [] for number in lives}
    for fault in leg.spec["faults"]:
        number = fired.get(fault["id"], lives[0])
        strikes[number if number in strikes else lives[0]].append(fault)
    return strikes


def _life(leg: LegView, number: int | None, changes: dict[str, Any]) -> LegView:
    import pyarrow.compute as pc

    def of_it(name: str) -> Any:
        table = leg.evidence.table(name)
        return table.filter(pc.equal(table["attempt"], -1 if number is None else number))

    tables = {name: of_it(name) for name in ("losses", "ledger", "digests", "events")}
    evidence: Evidence = replace(
        leg.evidence, leg_id=f"{leg.id}/{number}", spec={**leg.evidence.spec, **changes}, **tables
    )
    return type(leg)(evidence, leg.whole)
