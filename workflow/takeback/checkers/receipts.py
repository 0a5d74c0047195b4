"""Receipts: the fault really struck, and the resume really resumed, from the newest checkpoint."""

from __future__ import annotations

import signal
from typing import Any

from takeback.checkers import losses
from takeback.checkers.case import Case, Event
from takeback.checkers.finding import Finding
from takeback.checkers.words import count, named


def fault_struck(case: Case) -> Finding:
    """Each planned fault was held by its victims, fired by the supervisor, and ended the victims."""
    faults = case.killed.spec["faults"]
    if not faults:
        return Finding("invalid", "no fault was planned for the killed leg")
    for fault in faults:
        flaw = _flaw(case, fault)
        if flaw:
            return Finding("invalid", f"the fault never struck: {flaw}")
    compared = "fault receipts of " + ", ".join(_name(fault) for fault in faults)
    return Finding(compared=compared, remark=_unnoticed(case))


def _unnoticed(case: Case) -> str:
    """Survivors that had to be ended: the resume is judged all the same, but it should be known."""
    hangs = case.killed.events("hang_detected")
    waiting = [rank for rank, how in case.killed.exits.items() if how["by"] == "supervisor"]
    if not hangs or not waiting:
        return ""
    seconds = hangs[-1].monotonic - max(event.monotonic for event in case.killed.events("fault_fired"))
    return f"{named('rank', waiting)} had not noticed the loss after {seconds:.0f} s and had to be ended"


def _flaw(case: Case, fault: dict[str, Any]) -> str:
    leg, place = case.killed, f"{fault['point']} of step {fault['step']}"
    victims = _victims(fault["ranks"], leg.world)
    # One victim is held, and stands for all of them: a point may be passed by one rank only.
    held = victims & {event.rank for event in leg.events("held") if event.detail["fault"] == fault["id"]}
    if not held:
        return f"its point {place} was never reached"
    fired = [event.detail for event in leg.events("fault_fired")]
    struck = {v["rank"] for detail in fired if detail["fault"] == fault["id"] for v in detail["victims"]}
    if victims - struck:
        return f"{named('rank', held)} stood at {place}, but {named('rank', victims - struck)} was not struck"
    expected = getattr(signal, fault["kind"].upper(), None)
    spared = {rank for rank in victims if not _ended_by(leg.exits.get(rank), expected)}
    if spared:
        return f"{named('rank', spared)} did not end by {fault['kind']}"
    return ""


def _victims(ranks: str | list[int], world: int) -> set[int]:
    if ranks == "all":
        return set(range(world))
    return {world - 1} if ranks == "last" else set(ranks)


def _ended_by(how: dict[str, Any] | None, expected: int | None) -> bool:
    """By the very signal if the fault is one; any end that the fault brought about otherwise."""
    return how is not None and how["by"] == "fault" and expected in (None, how["signal"])


def _name(fault: dict[str, Any]) -> str:
    return f"{fault['kind']} at point {fault['point']}, step {fault['step']}"


def resume_is_due(case: Case) -> Finding:
    """Every rank told from where it goes on before its first step, and it is where it should be.

    Ranks that name different steps are the business of the checker ``agreement``.
    """
    leg, step = case.resumed, case.restored_step
    silent = set(range(leg.world)) - set(leg.restored)
    late = {e.rank for e in leg.events("first_step") if _is_late(leg.restored.get(e.rank), e)}
    committed, allowed = committed_steps(case)
    columns = {"committed_step": committed, "restored_step": None if silent else step}
    if silent or late:
        what = "none from" if silent else "it came after the first step on"
        sentence = f"no resume receipt: {what} {named('rank', silent or late)}"
        return Finding("invalid", sentence, columns=columns)
    if step not in allowed:
        compared = losses.check(case)
        columns |= compared.columns
        if step > committed:
            sentence = f"step {step} was restored, but no checkpoint of it was committed"
        else:
            done = f"step {step} was restored" if step else "silent restart from scratch"
            sentence = f"{done} although step {committed} was committed"
        if not compared.verdict and columns["steps_compared"]:
            every = count(columns["steps_compared"], "loss", "losses")
            sentence += f"; and yet every loss agrees with the reference ({every})"
        return Finding("invalid", sentence, compared.compared, columns=columns)
    told = leg.losses.steps
    if len(told) and told[0] <= step:
        sentence = f"the receipt says that step {step} was restored, but the first step done was {told[0]}"
        return Finding("invalid", sentence, columns=columns)
    compared = f"resume receipts of {count(leg.world, 'rank')}: step {step}"
    if committed or step:
        return Finding(compared=compared, columns=columns)
    remark = "no checkpoint was committed before the fault, so the start from scratch was right"
    return Finding(compared=compared, remark=remark, columns=columns)


def _is_late(receipt: Event | None, first_step: Event) -> bool:
    """Within the attempt of the receipt: a later attempt has receipts of its own."""
    return receipt is not None and receipt.attempt == first_step.attempt and receipt.monotonic > first_step.monotonic


def committed_steps(case: Case) -> tuple[int, set[int]]:
    """Newest checkpoint that was complete when the (last) fault struck, 0 if none; and all rightful ones.

    Rightful besides: what survivors completed after the fault, and a checkpoint whose save had begun
    when the victim was held, as its rename may have been done and its record not yet.
    """
    leg = case.killed
    struck = max((event.monotonic for event in leg.events("fault_fired")), default=float("inf"))
    before = [event.step for event in leg.events("saved") if event.monotonic <= struck]
    after = [event.step for event in leg.events("saved") if event.monotonic > struck]
    begun = [event.step for event in leg.events("held") if (event.point or "").startswith("save.")]
    committed = max(before, default=0)
    return committed, {committed} | {step for step in after + begun if step is not None and step > committed}
