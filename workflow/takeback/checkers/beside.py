"""Beside the loss: the gradient norm and the learning rate of each step are the reference's, bit for bit.

They see what the loss of the same step can't: a gradient that is clipped otherwise, a schedule that
was restarted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from takeback.checkers.case import Case, LegView
from takeback.checkers.compare import LossDifference, compare_losses
from takeback.checkers.finding import Finding
from takeback.checkers.losses import done_twice, due
from takeback.checkers.words import named

#: Columns of ``losses.parquet``, in the order in which a step makes them.
NAMES = ("grad_norm", "lr")


def check(case: Case) -> Finding:
    """The resumed leg against the reference, and steps done twice against their first execution."""
    sides = [(case.reference, due(case), "")]
    # Against the handover control the first execution is no measure: see losses.
    if not case.by_handover:
        sides.append((case.killed, done_twice(case), " done twice is not as at the first execution"))
    told = compared_names(case.resumed, case.reference, due(case))
    compared = f"{' and '.join(told)} of {named('step', due(case))}" if told else ""
    for other, steps, words in sides:
        first = first_difference(case.resumed, other, steps)
        if first is not None:
            step, name = first
            sentence = f"{name} of step {step}{words}" if words else f"{name} differs from step {step} on"
            return Finding("different", sentence, compared, first_step=step, first_state=name)
    lacking = [
        name for name in NAMES if len(case.reference.beside(name).steps) > len(case.resumed.beside(name).steps) == 0
    ]
    remark = f"the resumed leg told no {' and no '.join(lacking)}: not compared" if lacking else ""
    return Finding(compared=compared, remark=remark)


def first_difference(left: LegView, right: LegView, steps: np.ndarray) -> tuple[int, str] | None:
    """First of the ``steps`` at which a number differs, and its name; a leg that tells none is not compared.

    A step that a rank of either leg did not tell at all is the business of the losses.
    """
    mine, theirs = left.losses.at(steps).told, right.losses.at(steps).told
    known = mine & (theirs if left.world == right.world else theirs.any(axis=1, keepdims=True))
    found = []
    for name, difference in _compared(left, right, steps):
        found += [(int(step), name) for step in steps[(difference.differs & known).any(axis=1)][:1]]
    return min(found, key=lambda pair: pair[0], default=None)


def compared_names(left: LegView, right: LegView, steps: np.ndarray) -> list[str]:
    """Names of the numbers of which at least one can be compared."""
    return [name for name, difference in _compared(left, right, steps) if len(difference.steps_compared)]


def _compared(left: LegView, right: LegView, steps: np.ndarray) -> Iterator[tuple[str, LossDifference]]:
    for name in NAMES:
        mine, theirs = left.beside(name), right.beside(name)
        if len(mine.steps) and len(theirs.steps):
            yield name, compare_losses(mine.at(steps), theirs.at(steps), left.world == right.world)
