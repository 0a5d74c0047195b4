"""Beside the loss: the gradient norm and the learning rate of each step are the reference's, bit for bit.

They see what the loss of the same step can't: a gradient that is clipped otherwise, a schedule that
was restarted.
"""

from __future__ import annotations

import numpy as np

from takeback.checkers.case import Case, LegView
from takeback.checkers.compare import LossDifference, compare_losses
from takeback.checkers.finding import Finding
from takeback.checkers.words import named

#: Columns of ``losses.parquet``, in the order in which a step makes them.
NAMES = ("grad_norm", "lr")


def check(case: Case) -> Finding:
    """The resumed leg against the reference, and steps done twice against their first execution."""
    sides = [(case.reference, case.due, "")]
    # Against the handover control the first execution is no measure: see losses.
    if not case.by_handover:
        sides.append((case.killed, case.done_twice, " done twice is not as at the first execution"))
    compared = ""
    for other, steps, words in sides:
        numbers = _compared(case.resumed, other, steps)
        if other is case.reference:
            told = [name for name, difference in numbers.items() if len(difference.steps_compared)]
            compared = f"{' and '.join(told)} of {named('step', steps)}" if told else ""
        first = _first(case.resumed, other, steps, numbers)
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
    return _first(left, right, steps, _compared(left, right, steps))


def _first(
    left: LegView, right: LegView, steps: np.ndarray, numbers: dict[str, LossDifference]
) -> tuple[int, str] | None:
    different = {name: difference for name, difference in numbers.items() if difference.differs.any()}
    if not different:
        return None
    mine, theirs = left.losses.at(steps).told, right.losses.at(steps).told
    known = mine & (theirs if left.world == right.world else theirs.any(axis=1, keepdims=True))
    found = []
    for name, difference in different.items():
        found += [(int(step), name) for step in steps[(difference.differs & known).any(axis=1)][:1]]
    return min(found, key=lambda pair: pair[0], default=None)


def _compared(left: LegView, right: LegView, steps: np.ndarray) -> dict[str, LossDifference]:
    """The numbers that both legs tell, compared."""
    sides = {name: (left.beside(name), right.beside(name)) for name in NAMES}
    return {
        name: compare_losses(mine.at(steps), theirs.at(steps), left.world == right.world)
        for name, (mine, theirs) in sides.items()
        if len(mine.steps) and len(theirs.steps)
    }
