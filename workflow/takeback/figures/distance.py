"""How far the losses of a leg are from those of its reference, and what can't be told because it is not there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from takeback.bits import ulp_distance


@dataclass(frozen=True)
class Distance:
    """What two legs' losses have in common.

    Attributes:
        steps: int64[K], steps with a loss of one dtype on both sides, ascending.
        ulp: float[K], the largest distance of any rank there, in units in the last place.
        flaw: why it can't be said that all is equal although no distance shows it; empty if it can.
    """

    steps: np.ndarray
    ulp: np.ndarray
    flaw: str

    @property
    def largest(self) -> int:
        return int(self.ulp.max(initial=0))


def distance(losses: pd.DataFrame, reference: pd.DataFrame, after: int | None, by_rank: bool) -> Distance:
    """Compare bits and steps of two tables of losses (workflow/schemas/losses.schema.yaml).

    Args:
        losses: of the leg; every attempt counts.
        reference: of the leg that it is measured by.
        after: the leg should have done every step of the reference beyond this one; None if none is due.
        by_rank: compare rank by rank; else every rank with the one value that the reference's ranks agree on.
    """
    mine, theirs = _keys(losses, by_rank), _keys(reference, by_rank)
    known, first = np.unique(theirs, return_index=True)
    bits, dtypes = reference.loss_bits.to_numpy(np.int64), reference.loss_dtype.to_numpy(object)
    uneven = not by_rank and len(known) and (bits != bits[first][np.searchsorted(known, theirs)]).any()
    if uneven:
        return Distance(np.zeros(0, np.int64), np.zeros(0), "each rank told its own loss: not comparable")
    due = known[known >= (after + 1) * _RANKS] if after is not None else known[:0]
    place = np.searchsorted(known, mine)
    told = (place < len(known)) & (np.append(known, -1)[place] == mine)
    other, own, own_dtypes = first[place[told]], losses.loss_bits.to_numpy(np.int64)[told], losses.loss_dtype[told]
    same = own_dtypes.to_numpy(object) == dtypes[other]
    steps = losses.step.to_numpy(np.int64)[told]
    ulp, zeros = np.zeros(len(steps)), same & (own != bits[other])
    for dtype in set(own_dtypes):
        here = same & (own_dtypes == dtype).to_numpy()
        ulp[here] = ulp_distance(own[here], bits[other[here]], dtype)
    flaw = _missing(np.setdiff1d(due, mine) // _RANKS, mine // _RANKS) if len(theirs) else "no losses of the reference"
    if not flaw and not told.all():
        flaw = f"the reference has no step {losses.step.to_numpy()[~told].min()}"
    if not flaw and not same.all():
        flaw = f"another dtype from step {steps[~same].min()}"
    if not flaw and (zeros & (ulp == 0)).any():
        flaw = f"zeros of other sign from step {steps[zeros & (ulp == 0)].min()}"
    at, group = np.unique(steps[same], return_inverse=True)
    most = np.zeros(len(at))
    np.maximum.at(most, group, ulp[same])
    return Distance(at, most, flaw)


_RANKS = 1 << 32  # a key is step * _RANKS + rank, or + 0 where one value stands for all ranks


def _keys(losses: pd.DataFrame, by_rank: bool) -> np.ndarray:
    return losses.step.to_numpy(np.int64) * _RANKS + (losses["rank"].to_numpy(np.int64) if by_rank else 0)


def _missing(missing: np.ndarray, done: np.ndarray) -> str:
    """In what way steps are missing, if any are."""
    if not len(missing):
        return ""
    if not len(done):
        return "no losses"
    if missing.min() > done.max():
        return f"ends at step {done.max()}"
    return f"no loss of step {missing.min()}" + (f" and {len(set(missing)) - 1} more" if len(set(missing)) > 1 else "")
