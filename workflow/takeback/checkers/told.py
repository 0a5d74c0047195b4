"""What was told is whole: once, by every rank, and by one group. What is missing can't be compared."""

from __future__ import annotations

import numpy as np

from takeback.checkers.case import Case, LegView, kept
from takeback.checkers.finding import Finding
from takeback.checkers.tables import MOMENTS, moment_of
from takeback.checkers.words import count, named


def one_group(case: Case) -> Finding:
    """The ranks of each leg formed one group: each alone is a run of world 1, and resumes as such."""
    for role, leg in case.roles.items():
        other = _other_group(leg)
        if other:
            rank, world = other
            sentence = f"rank {rank} of the {role} was in a group of {count(world, 'rank')}, not {leg.world}"
            return Finding("invalid", sentence)
    return Finding()


@kept
def _other_group(leg: LegView) -> tuple[int, int] | None:
    """The first rank that was in a group of another size than the leg's, and that size."""
    worlds = ((event.rank, event.detail["world"]) for event in leg.events("group_formed"))
    return next(((rank, world) for rank, world in worlds if world != leg.world), None)


def once(case: Case) -> Finding:
    """Nothing was told twice in one attempt: of two records, one is not what happened."""
    for role, leg in case.roles.items():
        if leg.told_twice:
            return Finding("invalid", f"the {role} told twice: {leg.told_twice}")
    return Finding()


def by_all_ranks(case: Case) -> Finding:
    """Every rank of the resumed leg told the losses, and the state where every rank of the reference does.

    ``invalid`` and not ``different``: no bits differ, a part of the evidence is missing. (At another
    world size, where one value for all ranks is compared, nothing else would notice.)
    """
    if not case.goes_to_the_end:
        return Finding()  # its victims tell no more, and what they told is compared
    losses, states = case.resumed.losses, case.resumed.states
    silent = ~losses.told
    rows = silent.any(axis=1)
    if rows.any():
        ranks, steps = np.flatnonzero(silent.any(axis=0)), losses.steps[rows]
        sentence = f"{named('rank', ranks)} of the resumed leg told no loss of {named('step', steps)}"
        return Finding("invalid", sentence)
    expected = case.reference.states
    # A moment which all ranks of the reference have told once; after a handover to fewer ranks not all do.
    kinds = {key % len(MOMENTS) for key in expected.keys[~expected.silent.any(axis=(1, 2))].tolist()}
    for key, of_ranks in zip(states.keys.tolist(), states.silent[:, :, 0], strict=True):
        if key % len(MOMENTS) in kinds and of_ranks.any():
            moment, step = moment_of(key)
            ranks = named("rank", np.flatnonzero(of_ranks))
            return Finding("invalid", f"{ranks} of the resumed leg told no state ({moment}, step {step})")
    return Finding()
