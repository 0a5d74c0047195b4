"""Fault receipts: the planned fault really struck, where it was planned, and nothing else did."""

from __future__ import annotations

from typing import Any

from takeback.checkers.case import Case, Event, LegView, kept
from takeback.checkers.exits import sent
from takeback.checkers.finding import Finding
from takeback.checkers.words import named, signal_named


def struck(case: Case) -> Finding:
    """Each planned fault was held by a victim, fired by the supervisor, and ended all its victims."""
    return _struck(case.killed)


@kept
def _struck(leg: LegView) -> Finding:
    faults = leg.spec["faults"]
    if not faults:
        return Finding("invalid", "no fault was planned for the killed leg")
    for fault in faults:
        flaw = _flaw(leg, fault)
        if flaw:
            return Finding("invalid", flaw)
    stray = _stray(leg)
    if stray:
        return Finding("invalid", stray)
    compared = "fault receipts of " + ", ".join(_name(fault) for fault in faults)
    return Finding(compared=compared, remark=_unnoticed(leg))


def _flaw(leg: LegView, fault: dict[str, Any]) -> str:
    never, place = "the fault never struck: ", f"{fault['point']} of step {fault['step']}"
    victims = _victims(fault["ranks"], leg.world)
    # The first victim that is held stands for all of them: a point may be passed by one rank only.
    held = victims & {event.rank for event in leg.events("held") if _is_planned(event, fault)}
    if not held:
        return f"{never}its point {place} was never reached"
    fired = [event for event in leg.events("fault_fired") if event.detail["fault"] == fault["id"]]
    spared = victims - {victim["rank"] for event in fired for victim in event.detail["victims"]}
    early = {rank for event in fired for rank in spared if _had_ended(leg, rank, event)}
    if early:
        # Whatever ended it: what was planned is the loss of all victims at one time.
        return f"{named('rank', early)} had ended before the fault struck"
    if spared:
        return f"{never}{named('rank', held)} stood at {place}, but {named('rank', spared)} was not struck"
    ends_by = fired[0].detail.get("ends_by")
    if not ends_by:
        return f"the receipt of {fault['kind']} does not say how it ends its victims"
    spared = {rank for rank in victims if not _ended_by(leg.exits.get(rank), ends_by)}
    return f"{never}{named('rank', spared)} did not end by {fault['kind']}" if spared else ""


def _victims(ranks: str | list[int], world: int) -> set[int]:
    if ranks == "all":
        return set(range(world))
    return {world - 1} if ranks == "last" else set(ranks)


def _is_planned(held: Event, fault: dict[str, Any]) -> bool:
    return (held.detail["fault"], held.point) == (fault["id"], fault["point"]) and fault["step"] in (None, held.step)


def _had_ended(leg: LegView, rank: int, fired: Event) -> bool:
    ends = [event for event in leg.events("exited") if event.detail["of_rank"] == rank]
    return any(event.attempt == fired.attempt and event.monotonic <= fired.monotonic for event in ends)


def _ended_by(how: dict[str, Any] | None, ends_by: dict[str, Any]) -> bool:
    """By the fault, and in the way (``signal``, ``status``) that its receipt names."""
    return how is not None and how["by"] == "fault" and all(how.get(key) == value for key, value in ends_by.items())


def _stray(leg: LegView) -> str:
    """What else disturbed the leg: a rank that failed before the fault, or that somebody else killed.

    Survivors that fail after the fault, or abort themselves, are its consequence.
    """
    fired = leg.events("fault_fired")
    victims = {victim["rank"] for event in fired for victim in event.detail["victims"]}
    for event in leg.events("exited"):
        how = event.detail
        if how["by"] != "itself" or how["of_rank"] in victims:
            continue
        if how["status"] != 0 and any(_had_ended(leg, how["of_rank"], one) for one in fired):
            return f"rank {how['of_rank']} had ended before the fault struck"
        if sent(how):
            by = signal_named(how["signal"])
            return f"rank {how['of_rank']}, which was no victim, ended by {by}: not by the planned fault alone"
    return ""


def _unnoticed(leg: LegView) -> str:
    """Survivors that had to be ended: the resume is judged all the same, but it should be known."""
    hangs = leg.events("hang_detected")
    waiting = [rank for rank, how in leg.exits.items() if how["by"] == "supervisor"]
    if not hangs or not waiting:
        return ""
    seconds = hangs[-1].monotonic - max(event.monotonic for event in leg.events("fault_fired"))
    return f"{named('rank', waiting)} had not noticed the loss after {seconds:.0f} s and had to be ended"


def _name(fault: dict[str, Any]) -> str:
    return f"{fault['kind']} at point {fault['point']}, step {fault['step']}"
