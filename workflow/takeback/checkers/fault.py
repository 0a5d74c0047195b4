"""Fault receipts: the planned fault really struck, where it was planned, and nothing else did."""

from __future__ import annotations

from typing import Any

from takeback.checkers.case import Case, Event, LegView, kept
from takeback.checkers.exits import sent
from takeback.checkers.finding import Finding
from takeback.checkers.words import named, signal_named
from takeback.leg import ANYWHERE, victims_of, whom


def struck(case: Case) -> Finding:
    """Each planned fault was held by a victim, fired by the supervisor, and did to its victims what it does."""
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
    never, place = "the fault never struck: ", _place(fault)
    if whom(fault) != "ranks":
        return _flaw_of_nodes(leg, fault)
    victims = set() if fault["point"] == "end" else set(victims_of(fault, leg.ranks))
    # The first victim that is held stands for all of them: a point may be passed by one rank only.
    held = victims & {event.rank for event in leg.events("held") if _is_planned(event, fault)}
    if not held and fault["point"] not in ANYWHERE:
        return f"{never}its point {place} was never reached"
    fired = [event for event in leg.events("fault_fired") if event.detail["fault"] == fault["id"]]
    if not fired and not held:
        return f"{never}no receipt of {fault['kind']} at {place}"
    spared = victims - {victim["rank"] for event in fired for victim in event.detail["victims"]}
    early = {rank for event in fired for rank in spared if _had_ended(leg, rank, event)}
    if early:
        # Whatever ended it: what was planned is the loss of all victims at one time.
        return f"{named('rank', early)} had ended before the fault struck"
    if spared:
        return f"{never}{named('rank', held)} stood at {place}, but {named('rank', spared)} was not struck"
    return _traceless(leg, fault, victims, fired)


def _flaw_of_nodes(leg: LegView, fault: dict[str, Any]) -> str:
    """As :func:`_flaw`, of a fault that strikes agents, alone or with their ranks: any rank may be held for it."""
    place, never = _place(fault), "the fault never struck: "
    held = {event.rank for event in leg.events("held") if _is_planned(event, fault)}
    if not held and fault["point"] not in ANYWHERE:
        return f"{never}its point {place} was never reached"
    fired = [event for event in leg.events("fault_fired") if event.detail["fault"] == fault["id"]]
    if not fired:
        return f"{never}no receipt of {fault['kind']} at {place}"
    agents = {event.detail["of_agent"]: event.detail for event in leg.whole.events("agent_exited")}
    struck = {victim["node"] for event in fired for victim in event.detail["victims"] if victim["rank"] is None}
    spared = set(victims_of(fault, len(agents))) - struck if isinstance(fault[whom(fault)], list) else set()
    if spared or not struck:
        return f"{never}{named('agent', spared)} was not struck"
    ranks = {victim["rank"] for event in fired for victim in event.detail["victims"]} - {None}
    alive = {number for number in struck if not _ended_by(agents.get(number), fired[0].detail["ends_by"])}
    if fired[0].detail["ends_by"] and alive:
        return f"{never}{named('agent', alive)} did not end by {fault['kind']}"
    return _traceless(leg, fault, ranks, fired)


def _traceless(leg: LegView, fault: dict[str, Any], victims: set[int], fired: list[Event]) -> str:
    """What a fault that struck should have left and did not: the end of its victims, or what it proves."""
    receipt = fired[0].detail
    ways, proves = receipt.get("ends_by"), receipt.get("proves", {})
    if ways is None or not (ways or proves):
        return f"the receipt of {fault['kind']} does not say how it ends its victims, nor what else it does"
    went_on = [event for event in leg.events("fault_went_on") if event.detail["fault"] == fault["id"]]
    seen = {name: value for event in (*fired, *went_on) for name, value in event.detail.get("seen", {}).items()}
    for name, value in proves.items():
        if seen.get(name) != value:
            what = f"{name} was {seen.get(name)!r}, not {value!r}"
            return f"the fault never struck: after {fault['kind']} {what}"
    spared = {rank for rank in victims if ways and not _ended_by(leg.exits.get(rank), ways)}
    return f"the fault never struck: {named('rank', spared)} did not end by {fault['kind']}" if spared else ""


def _place(fault: dict[str, Any]) -> str:
    return f"{fault['point']} of step {fault['step']}" if fault["step"] else fault["point"]


def _is_planned(held: Event, fault: dict[str, Any]) -> bool:
    return (held.detail["fault"], held.point) == (fault["id"], fault["point"]) and fault["step"] in (None, held.step)


def _had_ended(leg: LegView, rank: int, strike: Event) -> bool:
    ends = [event for event in leg.events("exited") if event.detail["of_rank"] == rank]
    return any(event.attempt == strike.attempt and event.monotonic <= strike.monotonic for event in ends)


def _ended_by(how: dict[str, Any] | None, ways: list[dict[str, Any]]) -> bool:
    """In one of the ways (``signal``, ``status``) that the receipt names, and by the fault unless it says otherwise."""
    wanted = ({"by": "fault", **way} for way in ways)
    return how is not None and any(all(how.get(key) == value for key, value in way.items()) for way in wanted)


def _stray(leg: LegView) -> str:
    """What else disturbed the leg: a rank that failed before the fault, or that somebody else killed.

    Survivors that fail after the fault, or abort themselves, are its consequence.
    """
    victims = {victim["rank"] for event in leg.events("fault_fired") for victim in event.detail["victims"]}
    for event in leg.events("exited"):
        how = event.detail
        if how["by"] != "itself" or how["of_rank"] in victims:
            continue
        if how["status"] != 0 and any(_had_ended(leg, how["of_rank"], one) for one in leg.strikes):
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
    return f"{fault['kind']} at point {fault['point']}" + (f", step {fault['step']}" if fault["step"] else "")
