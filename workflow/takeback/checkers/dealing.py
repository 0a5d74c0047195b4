"""Which rule of a changing world was broken, where the samples of a resumed run are not the reference's.

Whatever scales with the number of ranks is computed anew, and nothing is keyed by the position of a rank: a run that
goes on with another number of ranks, and takes either from its checkpoint, leaves samples out or uses them twice.
"""

from __future__ import annotations

from takeback.checkers.case import Case, LegView
from takeback.checkers.finding import Finding


def cause(case: Case, of_data: Finding) -> str:
    """The rule that explains the samples of the first resumed step; empty if none does."""
    step = case.restored_step + 1
    if not of_data.verdict or of_data.first_step != step or case.resumed.world == case.killed.world:
        return ""
    before, after = _dealt(case.killed, step), _dealt(case.resumed, step)
    shared = sorted(before.keys() & after.keys())
    if not shared:
        return ""
    ranks = f"on {case.resumed.world} ranks as on {case.killed.world}"
    if all(len(before[rank]) == len(after[rank]) for rank in shared):
        each = len(after[shared[0]])
        return f"what scales with the number of ranks was not computed anew: {each} samples a rank {ranks}"
    used = [sample for ids in after.values() for sample in ids]
    begins = all(after[rank][: len(before[rank])] == before[rank] for rank in shared)
    if begins and len(set(used)) < len(used):
        last = shared[-1]
        return f"what a rank begins with was keyed by its position: rank {last} begins {ranks} with the same samples"
    return ""


def _dealt(leg: LegView, step: int) -> dict[int, list[int]]:
    """The samples of one step by rank, in the order in which it used them; of ranks that used any."""
    found = leg.ledger(step)
    return {rank: ids for rank, ids in found.items() if ids}
