"""Checkers: pure functions from the evidence of one cell to a finding, and their composition.

First the gates, in this order: the first one with a verdict decides, since what comes after it
would rest on what is missing. Then the comparisons, which are all made and read together.
After Jepsen (``checker.clj``): results are data, composed by priority, and "can't be told" is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from takeback.checkers import (
    agreement,
    beside,
    data,
    dealing,
    exits,
    fault,
    hardware,
    launcher,
    losses,
    lost,
    original,
    receipts,
    reload,
    repeatability,
    state,
    survivors,
    times,
    told,
)
from takeback.checkers.case import Case
from takeback.checkers.finding import Finding

Checker = Callable[[Case], Finding]

GATES: tuple[Checker, ...] = (
    exits.could_run,  # not-run
    exits.uninterrupted_ran,  # crashed, hung: without these legs there is nothing to compare with
    told.one_group,  # invalid: another world than the cell's
    receipts.started_from_scratch,  # invalid: checkpoints that nobody accounts for
    fault.struck,  # invalid: nothing was survived, or not what was planned
    times.check,
    lost.check,
    survivors.check,
    launcher.check,  # crashed: it gave up; invalid: it broke its contract
    reload.check,  # different: before the ranks that wait for each other are taken for hung
    exits.resumed_ran,  # hung, crashed, refused
    told.once,  # invalid: of two records one is not what happened
    agreement.positions,  # different: before the restored step is judged, it must be one step
    receipts.resume_is_due,  # invalid: nothing was resumed, or not what should have been
    receipts.handover_fits,  # invalid: the reference changes its topology elsewhere
    told.by_all_ranks,  # invalid: a part of the evidence is missing
    hardware.check,  # invalid: other bits would be no wonder
    repeatability.check,  # unrepeatable
    agreement.states,  # different
)
COMPARISONS: tuple[Checker, ...] = (losses.check, state.check, data.check, beside.check, original.check)


@dataclass(frozen=True)
class Judgement:
    """The verdict on a cell, and all that was found on the way to it."""

    verdict: str
    diagnosis: str
    findings: tuple[Finding, ...]
    first_step: int | None = None
    first_state: str | None = None


def judge(case: Case) -> Judgement:
    """Let all checkers look at one cell, life by life, and compose their findings."""
    if case.earlier is not None:
        before = judge(case.earlier)
        if before.verdict != "equal":
            return before
    found: list[Finding] = []
    for gate in GATES:
        found.append(gate(case))
        last = found[-1]
        if last.verdict:
            burned = [finding.remark for check, finding in zip(GATES, found, strict=False) if check is launcher.check]
            diagnosis = "; ".join(filter(None, [last.sentence, *burned]))
            return Judgement(last.verdict, diagnosis, tuple(found), last.first_step, last.first_state)
    if case.never_began:
        return Judgement("equal", "struck again before it had loaded anything", tuple(found))
    compared = [comparison(case) for comparison in COMPARISONS]
    found += compared
    remarks = [finding.remark for finding in found if finding.remark]
    if any(finding.verdict for finding in compared):
        return _different(case, found, compared, remarks)
    agreeing = [finding.sentence for finding in compared if finding.sentence]
    of_losses, of_state, *_ = compared
    if not (of_losses.sentence or of_state.sentence):
        # Samples alone are what went in, not what came out.
        if not case.goes_to_the_end:
            return Judgement("equal", "struck again before it had told anything", tuple(found))
        return Judgement("invalid", "nothing to compare: the resumed leg told no loss and no state", tuple(found))
    *most, last = agreeing
    agree = f"{', '.join(most)} and {last} agree" if most else f"{last} agree"
    return Judgement("equal", "; ".join([f"equal: {agree} bit for bit", *remarks]), tuple(found))


def _different(case: Case, found: list[Finding], compared: list[Finding], remarks: list[str]) -> Judgement:
    first = min(finding.first_step for finding in compared if finding.verdict)
    of_losses, of_state, of_data, of_beside, _ = compared
    cause = hardware.cause(case, of_losses, of_data)
    parts = [*filter(None, [cause, dealing.cause(case, of_data)]), f"from step {first} on"]
    parts += [finding.sentence for finding in (of_state, of_losses, of_beside, of_data) if finding.verdict]
    if not of_losses.verdict and of_losses.sentence:
        parts.append(f"every loss agrees ({of_losses.sentence})")
    if not of_state.verdict and of_state.sentence:
        parts.append(f"every state digest agrees ({of_state.sentence})")
    if not of_data.verdict and of_data.sentence:
        parts.append("sample ids equal")
    diagnosis = "; ".join(parts + remarks)
    named = [finding for finding in (of_state, of_beside) if finding.first_state]
    first_state = min(named, key=lambda finding: finding.first_step).first_state if named else None
    return Judgement("different", diagnosis, tuple(found), first, first_state)
