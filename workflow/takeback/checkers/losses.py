"""Losses: from the restored step to the end they are the reference's, bit for bit."""

from __future__ import annotations

import numpy as np

from takeback.checkers.case import Case
from takeback.checkers.compare import LossDifference, compare_losses
from takeback.checkers.finding import Finding
from takeback.checkers.tables import LossTable, without
from takeback.checkers.words import count, named


def check(case: Case) -> Finding:
    """The resumed leg against the reference, and steps done twice against their first execution."""
    after = case.restored_step
    mine, theirs = case.resumed.losses, case.reference.losses
    by_rank = case.resumed.world == case.reference.world
    steps = case.due
    found = compare_losses(mine.at(steps), theirs.at(steps), by_rank)
    different = found.steps_different
    columns = {
        "steps_compared": len(found.steps_compared),
        "losses_different": len(different),
        "first_loss_step": int(different[0]) if len(different) else None,
        "max_ulp": found.max_ulp,
        "first_ulp": compare_losses(mine.at(steps[:1]), theirs.at(steps[:1]), by_rank).max_ulp
        if len(different)
        else found.max_ulp,
    }
    missing = theirs.steps[:0]
    if case.goes_to_the_end:
        missing = without(theirs.steps[theirs.steps > after], mine.steps[mine.steps > after])
    extra = without(steps, theirs.steps[theirs.steps > after])
    compared = _compared(found, by_rank)
    twice = case.done_twice
    if len(different):
        sentence = _sentence(case, found, missing, extra)
        return Finding("different", sentence, compared, _nans(found), first_step=int(different[0]), columns=columns)
    changed = _twice_different(case, twice)
    if len(changed):
        sentence = f"{named('step', changed)} done twice: not as at the first execution"
        return Finding("different", sentence, compared, _nans(found), first_step=int(changed[0]), columns=columns)
    agree = count(len(found.steps_compared), "loss", "losses") if len(found.steps_compared) else ""
    remarks = [_uncompared(case, found), _nans(found), _remark(case, twice) if agree else ""]
    return Finding(None, agree, compared, "; ".join(filter(None, remarks)), columns=columns)


def _compared(found: LossDifference, by_rank: bool) -> str:
    if not len(found.steps_compared):
        return ""
    how = "rank by rank" if by_rank else "the one value that all ranks of a leg agree on"
    return f"losses of {named('step', found.steps_compared)} as {' and '.join(found.dtypes) or 'no common'} bits, {how}"


def _sentence(case: Case, found: LossDifference, missing: np.ndarray, extra: np.ndarray) -> str:
    different, total = found.steps_different, len(found.steps_compared)
    told = np.setdiff1d(np.setdiff1d(different, missing), extra)
    parts = []
    if len(told):
        parts.append(f"losses differ from step {told[0]} on ({len(told)} of {total}, {found.far})")
    if len(missing):
        last = case.resumed.losses.steps
        end = f"stopped after step {last[-1]}" if len(last) and missing[0] > last[-1] else "did not do all steps"
        parts.append(f"the resumed leg {end if len(last) else 'did no step'}: {named('step', missing)} missing")
    if len(extra):
        parts.append(f"the resumed leg did {named('step', extra)}, which the reference did not")
    mixed = _mixed(case)
    if len(mixed):
        parts.append(f"its ranks told different losses of {named('step', mixed)}")
    return "; ".join(parts)


def _mixed(case: Case) -> np.ndarray:
    """Steps whose losses differ over the ranks of the resumed leg, if the reference's never do."""
    if len(_uneven(case.reference.losses)):
        return np.zeros(0, np.int64)
    return _uneven(case.resumed.losses)


def _uneven(table: LossTable) -> np.ndarray:
    low = np.where(table.told, table.bits, np.iinfo(np.int64).max).min(axis=1)
    high = np.where(table.told, table.bits, np.iinfo(np.int64).min).max(axis=1)
    return table.steps[low < high]


def _twice_different(case: Case, steps: np.ndarray) -> np.ndarray:
    """Those of the ``steps`` done twice whose losses differ.

    Where the topology changes and the backend's own all-reduce is used, the first execution
    summed in another order: it is no measure.
    """
    if case.by_handover:
        return steps[:0]
    by_rank = case.killed.world == case.resumed.world
    before = case.killed.losses.at(steps)
    differs = compare_losses(case.resumed.losses.at(steps), before, by_rank).differs
    # The victim may have died before it told a step that its peers had done.
    return steps[(differs & (before.told if by_rank else True)).any(axis=1)]


def _uncompared(case: Case, found: LossDifference) -> str:
    """Why losses were not compared, if so: what is not said would be taken for compared."""
    if len(found.own):
        return f"each rank told its own loss of {named('step', found.own)}: not compared at another world size"
    if len(found.steps):
        return ""
    if len(case.reference.losses.steps):
        return f"no step was left to do after step {case.restored_step}: no loss compared"
    return "no loss told: not compared"


def _nans(found: LossDifference) -> str:
    """A loss that is no number any more is the same whatever was lost."""
    many = len(found.nan)
    return f"{many:,} of the compared losses {'is' if many == 1 else 'are'} NaN" if many else ""


def _remark(case: Case, twice: np.ndarray) -> str:
    if not len(twice):
        return ""
    done = f"{named('step', twice)} {'was' if len(twice) == 1 else 'were'} done twice"
    if case.by_handover:
        return f"{done}; at another world size the first execution is no measure"
    return f"{done} and {'equals its' if len(twice) == 1 else 'equal their'} first execution"
