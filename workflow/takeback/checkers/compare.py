"""Bit by bit: losses with losses, state digests with state digests.

Two legs of one world size are compared rank by rank. At another world size a rank has no
counterpart; then what all ranks of a leg agree on (replicated values) is compared as one value,
and what each rank has of its own can't be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from takeback import bits
from takeback.bits import MAX_ULP
from takeback.checkers.tables import LossTable, StateTable, moment_of, replicated


@dataclass(frozen=True)
class LossDifference:
    """Losses of K steps compared on W ranks (W is 1 where replicated values were compared).

    Attributes:
        steps: int64[K].
        own: int64[n], steps whose losses can't be compared, as each rank of the right leg told its own.
        compared, differs: bool[K, W]; a loss that only one side told is compared and differs.
        max_ulp: largest distance; None if nothing was compared, or a loss that differs has no distance: told by one
            side only, or in another dtype.
        dtypes: names of the dtypes whose bits were compared.
        far: how far the losses that differ are apart, in words.
        nan: int64[n], steps of which a compared loss is a NaN.
    """

    steps: np.ndarray
    own: np.ndarray
    compared: np.ndarray
    differs: np.ndarray
    max_ulp: int | None
    dtypes: tuple[str, ...]
    far: str
    nan: np.ndarray

    @cached_property
    def steps_compared(self) -> np.ndarray:
        """Steps of which at least one loss was compared."""
        return self.steps[self.compared.any(axis=1)]

    @cached_property
    def steps_different(self) -> np.ndarray:
        """Steps of which at least one loss differs."""
        return self.steps[self.differs.any(axis=1)]


def compare_losses(left: LossTable, right: LossTable, by_rank: bool) -> LossDifference:
    """Compare two tables that have the same steps.

    At another world size each rank of ``left`` is compared with the one value that the ranks of ``right`` agree on.
    """
    if len(left.steps) and _alike(left, right, by_rank):
        return _no_difference(left)
    own = np.zeros(len(left.steps), bool)
    if not by_rank:
        right, agrees = _one_value(right)
        own = ~agrees
    compared = (left.told | right.told) & ~own[:, None]
    told = compared & left.told & right.told
    both = told & (left.wide == right.wide)
    alike = both & (left.bits == right.bits)
    mine, theirs = np.broadcast_arrays(left.bits, right.bits)
    unlike = both & ~alike
    other_bits = bool(unlike.any())
    ulps, dtypes, nan = [], [], np.zeros_like(both)
    for dtype, chosen in (("float32", both & ~left.wide), ("float64", both & left.wide)):
        if chosen.any():
            dtypes.append(dtype)
            nan |= chosen & bits.is_nan(mine, dtype)
            ulps.append(0)
            if other_bits and (here := chosen & unlike).any():
                nan |= chosen & bits.is_nan(theirs, dtype)
                ulps.append(int(bits.ulp_distance(mine[here], theirs[here], dtype).max()))
    max_ulp = max(ulps, default=None)
    return LossDifference(
        left.steps,
        left.steps[own],
        compared,
        compared & ~alike,
        None if (compared & ~both).any() else max_ulp,
        tuple(dtypes),
        far=_far(max_ulp, other_bits, bool((told & ~both).any())),
        nan=left.steps[nan.any(axis=1)],
    )


def _alike(left: LossTable, right: LossTable, by_rank: bool) -> bool:
    """Whether all ranks of both have told the same of each step: most often they have, and all is said."""
    if not (left.told.all() and right.told.all()):
        return False
    sides = ((left.bits, right.bits), (left.wide, right.wide))
    if by_rank:
        return all((mine == theirs).all() for mine, theirs in sides)
    return all((mine == theirs[:, :1]).all() and (theirs == theirs[:, :1]).all() for mine, theirs in sides)


def _no_difference(table: LossTable) -> LossDifference:
    own, differs = table.steps[:0], np.zeros_like(table.told)
    dtypes, nan = [], differs
    for dtype, chosen in (("float32", ~table.wide), ("float64", table.wide)):
        if chosen.any():
            dtypes.append(dtype)
            nan = nan | (chosen & bits.is_nan(table.bits, dtype))
    nans = table.steps[nan.any(axis=1)]
    return LossDifference(table.steps, own, table.told, differs, 0, tuple(dtypes), _far(0, False, False), nans)


def _far(max_ulp: int | None, other_bits: bool, other_dtype: bool) -> str:
    if not other_bits:
        return "in dtype" if other_dtype else "told by one side only"
    if max_ulp == MAX_ULP:
        return "a NaN against a number"
    return f"up to {max_ulp:,} ULP" if max_ulp else "by the sign of zero"


def _one_value(table: LossTable) -> tuple[LossTable, np.ndarray]:
    """The loss that the ranks agree on, as a table of one rank, and bool[K] whether they do."""
    told, row = table.told, np.arange(len(table.steps))
    first = told.argmax(axis=1)
    value, wide = table.bits[row, first][:, None], table.wide[row, first][:, None]
    agrees = (((table.bits == value) & (table.wide == wide)) | ~told).all(axis=1)
    return LossTable(table.steps, value, told.any(axis=1)[:, None], wide), agrees


@dataclass(frozen=True)
class StateDifference:
    """What a comparison of state found.

    Attributes:
        compared, different: numbers of digests.
        skipped: names that each rank has of its own and that could therefore not be compared.
        key: earliest moment that differs (None: none does), see ``tables.moment_key``.
        name, ranks: first differing name at that moment, in the trainer's order, and the ranks.
        more: how many further names differ at that moment.
        everywhere: whether it differs on all ranks that were compared.
        missing: whether only one of the two sides has this entry.
    """

    compared: int
    different: int
    skipped: frozenset[str] = frozenset()
    key: int | None = None
    name: str | None = None
    ranks: tuple[int, ...] = ()
    more: int = 0
    everywhere: bool = True
    missing: bool = False

    @property
    def step(self) -> int | None:
        """First step that the difference concerns: right after the load of step r that is r + 1."""
        if self.key is None:
            return None
        moment, step = moment_of(self.key)
        return step + 1 if moment == "loaded" else step


def compare_states(left: StateTable, right: StateTable, own: frozenset[str] | None) -> StateDifference:
    """Compare two tables whose moments correspond one to one; ``left`` names the moments.

    The order of names is that of ``right``; names which it lacks come last.

    Args:
        own: None to compare rank by rank; else the names of per-rank state, which is left out. The
            ranks of ``left`` must then agree on all other names: an entry that is uneven differs.
    """
    names = right.names
    if left.names != names:
        names += tuple(name for name in left.names if name not in set(names))
    a, b = left.under(names), right.under(names)
    skipped: frozenset[str] = frozenset()
    if own is None:
        compared = (a != 0) | (b != 0)
        differs = compared & (a != b)
    else:
        (a, agrees), (b, _) = replicated(a), replicated(b)
        shared = np.array([name not in own for name in names], bool)
        skipped = own & frozenset(names) if len(left.keys) else skipped
        a, b = a[:, None], b[:, None]
        compared = ((a != 0) | (b != 0)) & shared
        differs = compared & ((a != b) | ~agrees[:, None])
    counts = int(compared.sum()), int(differs.sum())
    if not counts[1]:
        return StateDifference(*counts, skipped)
    moment = int(differs.any(axis=(1, 2)).argmax())
    concerned = differs[moment].any(axis=0)
    name = int(concerned.argmax())
    ranks = np.flatnonzero(differs[moment, :, name])
    return StateDifference(
        *counts,
        skipped,
        key=int(left.keys[moment]),
        name=names[name],
        ranks=tuple(map(int, ranks)),
        more=int(concerned.sum()) - 1,
        everywhere=len(ranks) == int(compared[moment, :, name].sum()),
        missing=bool(((a == 0) | (b == 0))[moment, ranks, name].all()),
    )
