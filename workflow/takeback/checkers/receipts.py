"""Resume receipts: undisturbed legs start from scratch, the resumed one from the newest checkpoint."""

from __future__ import annotations

import signal
from typing import NamedTuple

import numpy as np

from takeback.checkers import losses
from takeback.checkers.case import NOTHING_SAVED, Case, Event, LegView, kept
from takeback.checkers.finding import Finding
from takeback.checkers.words import count, named


def started_from_scratch(case: Case) -> Finding:
    """Every leg without a parent told, before its first step, that it starts from scratch, and did so.

    Else it may have found the checkpoints of another run, and what it shows is no undisturbed run.
    A rank of the killed leg that was struck before its first step owes no receipt.
    """
    for role in ("reference", "twin", "killed leg"):
        flaw = _flaw(case.roles[role], role)
        if flaw:
            cause = "it may have found another run's checkpoints"
            return Finding("invalid", f"the {role} did not start from scratch, as far as it told: {flaw}; {cause}")
    return Finding()


@kept
def _flaw(leg: LegView, role: str) -> str:
    """What speaks against a start from scratch; empty if nothing does, or the leg has a parent."""
    if leg.spec["parent"] is not None:
        return ""
    due = set(range(leg.ranks)) if role != "killed leg" else set(np.flatnonzero(leg.losses.told.any(axis=0)))
    silent, late = due - _receipts(leg).keys(), _late(leg)
    wrong = {rank: step for rank, step in _receipts(leg).items() if step}
    first = leg.losses.steps[:1]
    if silent:
        return f"{named('rank', silent)} told no restored step"
    if late:
        return f"the receipt came after the first step on {named('rank', late)}"
    if wrong:
        rank = min(wrong)
        return f"rank {rank} restored step {wrong[rank]}"
    return f"its first step was {first[0]}" if len(first) and first[0] != 1 else ""


@kept
def _receipts(leg: LegView) -> dict[int, int]:
    """Restored step by rank; a receipt that names no step is none."""
    return {rank: event.step for rank, event in sorted(leg.restored.items()) if event.step is not None}


@kept
def _late(leg: LegView) -> set[int]:
    return {event.rank for event in leg.events("first_step") if _is_late(leg.restored.get(event.rank), event)}


def resume_is_due(case: Case) -> Finding:
    """Every rank told from where it goes on before its first step, and it is where it should be.

    Ranks that name different steps are the business of the checker ``agreement``.
    """
    leg, step = case.resumed, case.restored_step
    if case.never_began:
        return Finding()
    silent = set(range(leg.ranks)) - _receipts(leg).keys()
    late = _late(leg)
    left = left_behind(case)
    # Of what the fault destroyed, and the trainer told of: one older is right, the newest that is left.
    gone = left.destroyed & {event.step for event in leg.events("damaged")}
    committed, allowed = left.newest, left.rightful | {max(left.sure - gone)}
    columns = {"committed_step": committed, "restored_step": None if silent and case.goes_to_the_end else step}
    if late or (silent and case.goes_to_the_end):
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
    done = leg.losses.steps
    if len(done) and done[0] <= step:
        sentence = f"the receipt says that step {step} was restored, but the first step done was {done[0]}"
        return Finding("invalid", sentence, columns=columns)
    if not (step or case.reference.events("saved") or case.reference.events("committed")):
        sentence = "the trainer never told of a complete checkpoint, so a resume can't be judged"
        return Finding("invalid", sentence, columns=columns)
    compared = f"resume receipts of {count(leg.ranks, 'rank')}: step {step}"
    if step < committed:
        lost = named("step", {one for one in gone if one > step})
        remark = (
            f"the fault had destroyed the checkpoint of {lost}, and the trainer told so: step {step} was the newest"
        )
        return Finding(compared=compared, remark=remark, columns=columns)
    if step > committed:
        told = any(event.step == step for event in case.killed.events("saved"))
        how = "completed after the fault had struck" if told else "had saved and could not tell: it ended in between"
        remark = f"step {step} was restored, which the killed leg {how}"
        return Finding(compared=compared, remark=remark, columns=columns)
    if committed or step:
        return Finding(compared=compared, columns=columns)
    remark = "no checkpoint was committed before the fault, so the start from scratch was right"
    return Finding(compared=compared, remark=remark, columns=columns)


def _is_late(receipt: Event | None, first_step: Event) -> bool:
    """Within the attempt of the receipt: a later attempt has receipts of its own."""
    return receipt is not None and receipt.attempt == first_step.attempt and receipt.monotonic > first_step.monotonic


#: How a process ends that heeds a notice (128 + SIGTERM): a fault that gives one allows for it.
ON_NOTICE = {"status": 143}


class Left(NamedTuple):
    """Checkpoints that a struck leg left behind, by their steps.

    Attributes:
        sure: those which it surely completed, or found; 0 stands for none.
        unsure: those which it may have completed besides.
        destroyed: those of the sure ones which the fault damaged, by its own receipt: what it saw of the files.
    """

    sure: frozenset[int]
    unsure: frozenset[int]
    destroyed: frozenset[int]

    @property
    def newest(self) -> int:
        """The newest one for sure."""
        return max(self.sure)

    @property
    def rightful(self) -> set[int]:
        """All from which a resume may go on, if none was damaged."""
        return {self.newest} | {step for step in self.unsure if step > self.newest}


def left_behind(case: Case) -> Left:
    """What the killed leg left behind.

    A trainer that tells ``committed``, when the new checkpoint is the one which a restart finds,
    leaves no doubt. One that tells only ``saved`` leaves two: what survivors completed after the
    fault, and a save that had begun when the victim was held, as its rename may have been done and
    its record not yet. An end at any instruction leaves that doubt in any case. Without any, a leg
    leaves behind what it had restored itself.
    """
    leg = case.killed
    struck = max((event.monotonic for event in leg.strikes), default=float("inf"))
    saved, found = leg.events("saved"), leg.events("committed")
    sure = {event.step for event in found} | {event.step for event in saved if event.monotonic <= struck}
    unsure = {event.step for event in saved if event.monotonic > struck}
    if not (found or case.reference.events("committed")):
        unsure |= {event.step for event in leg.events("held") if (event.point or "").startswith("save.")}
    unsure |= _perhaps_saved(case)
    receipts = (*leg.events("fault_fired"), *leg.events("fault_went_on"))
    destroyed = {step for event in receipts for step in event.detail.get("seen", {}).get("destroyed", [])}
    before = left_behind(case.earlier) if case.earlier is not None else Left(frozenset({0}), frozenset(), frozenset())
    return Left(
        before.sure | sure - {None},
        before.unsure | unsure - {None},
        (before.destroyed - sure) | destroyed,
    )


def _perhaps_saved(case: Case) -> set[int]:
    """The last step of a killed leg that ended at any instruction: perhaps between the rename of a save and its record.

    One that was not held was struck anywhere; it saves where the reference does. One that had notice, and was killed
    all the same, may have saved after any step.
    """
    leg = case.killed
    if not len(leg.losses.steps):
        return set()
    last = {int(leg.losses.steps[-1])}
    killed = any(how["signal"] == signal.SIGKILL or how.get("known") == "nobody" for how in leg.exits.values())
    if killed and any(ON_NOTICE in event.detail.get("ends_by", ()) for event in leg.strikes):
        return last
    due = {event.step for event in case.reference.events("committed") + case.reference.events("saved")}
    return set() if leg.events("held") else last & due


def handover_fits(case: Case) -> Finding:
    """The reference changes its topology at the step from which the resumed leg goes on, if at all."""
    handover, step = case.cell.reference.spec["trainer"]["settings"].get("handover"), case.restored_step
    if handover and step != int(handover.split(":")[1]):
        at = handover.split(":")[1]
        return Finding("invalid", f"the handover control hands over at step {at}, the resume restored {step}")
    if case.cell.against == NOTHING_SAVED and step:
        return Finding("invalid", f"the reference has no handover, the resume restored {step}")
    return Finding()
