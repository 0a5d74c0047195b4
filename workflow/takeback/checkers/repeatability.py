"""Repeatability first: uninterrupted runs of one kind are bit-equal, else nothing can be said about resume."""

from __future__ import annotations

import numpy as np

from takeback.checkers import beside
from takeback.checkers.case import Case, LegView, kept
from takeback.checkers.compare import compare_losses, compare_states
from takeback.checkers.finding import Finding
from takeback.checkers.tables import StateTable, moment_key, union
from takeback.checkers.words import count


def check(case: Case) -> Finding:
    """The twin against the reference, and the killed leg, up to the fault, against the reference.

    A killed leg that leaves the reference before its fault is a third uninterrupted run which is not
    repeatable; at another world size than the reference's it is ``different``: it is then the
    topology that changes the bits, not chance.
    """
    own = case.own_names(case.killed, case.reference)
    twins = _differ(case.twin, case.reference, None, None)
    if twins.first_step is not None:
        return Finding("unrepeatable", f"two uninterrupted runs differ {twins.sentence}", **_first(twins))
    # With a handover the reference leaves the killed leg's topology at the checkpoint.
    upto = case.restored_step if case.by_handover else case.fault_step
    before = _differ(case.killed, case.reference, upto, own)
    if before.first_step is None:
        compared = f"twin with reference ({twins.compared})"
        compared += f", killed leg up to step {upto} with reference ({before.compared})"
        return Finding(compared=compared)
    same = case.killed.world == case.reference.world
    sentence = f"the killed leg differs from the reference before the fault already, {before.sentence}"
    if not same:
        sentence += f" (world {case.killed.world} against {case.reference.world})"
    return Finding("unrepeatable" if same else "different", sentence, **_first(before))


def _first(found: Finding) -> dict:
    return {"compared": found.compared, "first_step": found.first_step, "first_state": found.first_state}


@kept
def _differ(leg: LegView, reference: LegView, upto: int | None, own: frozenset[str] | None) -> Finding:
    """Compare all that both told; with ``upto`` only what ``leg`` told up to that step."""
    by_rank = leg.world == reference.world
    mine, theirs = leg.losses, reference.losses
    keys, their_keys = leg.states.keys, reference.states.keys
    if upto is None:
        steps, keys = union(mine.steps, theirs.steps), union(keys, their_keys)
    else:
        steps = mine.steps[mine.steps <= upto]
        keys = np.intersect1d(keys[keys < moment_key("step", upto + 1)], their_keys, assume_unique=True)
    mine, theirs = mine.at(steps), theirs.at(steps)
    losses = compare_losses(mine, theirs, by_rank)
    # A victim dies at any instruction: what it did not tell any more is no difference.
    known = True if upto is None else mine.told
    unlike = steps[(losses.differs & known).any(axis=1)]
    told, expected = leg.states.at(keys), reference.states.at(keys)
    if upto is not None and by_rank:
        expected = StateTable(keys, expected.names, np.where(told.silent, 0, expected.digests))
    states = compare_states(told, expected, own)
    compared = f"{count(len(losses.steps_compared), 'loss', 'losses')}, {count(states.compared, 'state digest')}"
    named = [(states.step, states.name)] if states.step is not None else []
    besides = beside.first_difference(leg, reference, steps)
    named += [besides] if besides else []
    firsts = [int(step) for step in unlike[:1]] + [step for step, _ in named]
    if not firsts:
        return Finding(compared=compared)
    _, name = min(named, key=lambda pair: pair[0], default=(None, None))
    what = f"; first different state: {name}" if name else ""
    far = f", {losses.far}" if len(unlike) else ""
    sentence = f"from step {min(firsts)} on ({count(len(unlike), 'loss', 'losses')}{far}){what}"
    return Finding(None, sentence, compared, first_step=min(firsts), first_state=name)
