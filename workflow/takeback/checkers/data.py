"""Data: each global step consumed the reference's samples, and none twice in an epoch if that has it so."""

from __future__ import annotations

import numpy as np

from takeback.checkers.case import Case
from takeback.checkers.finding import Finding
from takeback.checkers.tables import SampleTable
from takeback.checkers.words import count, ranges


def check(case: Case) -> Finding:
    """The effective samples (killed leg up to the restored step, then the resumed leg) against the reference.

    A step's samples are a multiset over all ranks, so that any world size has the same. Where the
    reference uses no sample twice in an epoch, neither did the resumed run. A reference that
    repeats samples itself (padding, draws with replacement) is followed, and said. Whether an epoch
    uses every sample of the data set is not checked: nobody told which there are.
    """
    expected = case.reference.samples
    if not len(expected.ids):
        return Finding(remark="no ledger: samples not compared", columns={"samples_equal": None})
    if not case.goes_to_the_end:
        return Finding()  # the next life is judged with all samples that went before it
    step = case.restored_step
    used = used_before(case, step).then(case.resumed.samples.between(step))
    steps = expected.steps_told
    often = "in an epoch each as often as there" if len(expected.repeated) else "none twice in an epoch"
    if expected.epochs.min() < 0:
        often = "no epoch told"
    compared = f"samples of {count(steps, 'step')} over all ranks, each step the reference's multiset, {often}"
    first = _first_difference(used, expected)
    if first is None:
        remark = ""
        if len(expected.repeated):
            epochs = ranges(expected.repeated)
            remark = f"the reference itself uses {count(len(expected.repeated), 'sample')} again within epoch {epochs}"
        agree = f"the samples of {count(steps, 'step')}"
        return Finding(None, agree, compared, remark, columns={"samples_equal": True})
    sentence = f"samples differ from step {first} on: {_how(used, expected)}"
    return Finding("different", sentence, compared, first_step=first, columns={"samples_equal": False})


def used_before(case: Case, step: int) -> SampleTable:
    """The effective samples of steps up to ``step``: each step as the last life did it that got so far."""
    if case.earlier is None:
        return case.killed.samples.between(0, step)
    start = step if case.earlier.never_began else min(case.earlier.restored_step, step)
    return used_before(case.earlier, start).then(case.killed.samples.between(start, step))


def _first_difference(used: SampleTable, expected: SampleTable) -> int | None:
    """First step whose samples, or whose epoch, are not the expected ones."""
    shared = min(len(used.ids), len(expected.ids))
    pairs = ((used.steps, expected.steps), (used.ids, expected.ids), (used.epochs, expected.epochs))
    unlike = np.logical_or.reduce([a[:shared] != b[:shared] for a, b in pairs])
    if unlike.any():
        place = int(unlike.argmax())
        return int(min(used.steps[place], expected.steps[place]))
    rest = np.concatenate([used.steps[shared:], expected.steps[shared:]])
    return int(rest[0]) if len(rest) else None


def _how(used: SampleTable, expected: SampleTable) -> str:
    """In which epochs samples were used too often or never; else what else is wrong."""
    mine = np.stack([used.epochs, used.ids], axis=1)
    theirs = np.stack([expected.epochs, expected.ids], axis=1)
    keys, place = np.unique(np.concatenate([mine, theirs]), axis=0, return_inverse=True)
    place = place.reshape(-1)
    times = np.bincount(place[: len(mine)], minlength=len(keys)) - np.bincount(place[len(mine) :], minlength=len(keys))
    parts = []
    for words, chosen in (("used too often", times > 0), ("never used or not often enough", times < 0)):
        if chosen.any():
            epochs = np.unique(keys[chosen, 0])
            of = f" of epoch {ranges(epochs)}" if epochs[0] >= 0 else ""
            parts.append(f"{count(int(chosen.sum()), 'sample')}{of} {words}")
    return " and ".join(parts) or "each sample is used as often as it should be, but in other steps"
