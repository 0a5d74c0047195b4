"""How far a resumed run is from the one that would have gone on where it was: another topology, other sums."""

from __future__ import annotations

from takeback.checkers.case import Case
from takeback.checkers.compare import compare_losses
from takeback.checkers.finding import Finding


def check(case: Case) -> Finding:
    """``ulp_to_original``: largest distance of a loss to that of an uninterrupted run on the killed run's topology.

    Told where the reference is the handover control, which changes its topology itself; no verdict depends on it.
    """
    if case.original is None:
        return Finding()
    mine, theirs = case.resumed.losses, case.original.losses
    steps = case.due
    found = compare_losses(mine.at(steps), theirs.at(steps), case.resumed.world == case.original.world)
    far = "the same bits as" if found.max_ulp == 0 else f"{found.far} from"
    remark = f"its losses are {far} those of the run that stays on the topology it began on"
    return Finding(remark=remark, columns={"ulp_to_original": found.max_ulp})
