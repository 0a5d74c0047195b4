"""The tables of one leg as arrays: losses, state digests and samples, by step and rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

#: Moments of one step in the order of time; a load of step r comes before step r + 1.
MOMENTS = {"step": 0, "saved": 1, "loaded": 2, "end": 3}
_NAMES = tuple(MOMENTS)


def moment_key(moment: str, step: int) -> int:
    """One integer for a moment of a step; keys sort by time."""
    return step * len(MOMENTS) + MOMENTS[moment]


def moment_of(key: int) -> tuple[str, int]:
    """Moment and step of a key."""
    return _NAMES[key % len(MOMENTS)], key // len(MOMENTS)


@dataclass(frozen=True)
class LossTable:
    """Losses of one leg, or other numbers told with them: S steps on W ranks.

    Attributes:
        steps: int64[S], ascending.
        bits: int64[S, W], bits of the number.
        told: bool[S, W], whether this rank told one of this step.
        wide: bool[S, W], True for float64, False for float32.
    """

    steps: np.ndarray
    bits: np.ndarray
    told: np.ndarray
    wide: np.ndarray

    def at(self, steps: np.ndarray) -> LossTable:
        """The rows of ``steps`` (ascending); a step that is not here is told by nobody."""
        return LossTable(steps, *_rows((self.bits, self.told, self.wide), self.steps, steps))


@dataclass(frozen=True)
class StateTable:
    """State digests of one leg: M moments, W ranks, N names.

    Attributes:
        keys: int64[M], ascending, see :func:`moment_key`.
        names: the N names in the trainer's own order.
        digests: uint64[M, W, N]; digest, dtype and shape in one number; 0 where nothing was told.
    """

    keys: np.ndarray
    names: tuple[str, ...]
    digests: np.ndarray

    def at(self, keys: np.ndarray) -> StateTable:
        """The rows of ``keys`` (ascending); zeros for a moment that is not here."""
        return StateTable(keys, self.names, *_rows((self.digests,), self.keys, keys))

    def under(self, names: tuple[str, ...]) -> np.ndarray:
        """uint64[M, W, len(names)]: digests in the order of other ``names``, zeros for unknown ones."""
        if names == self.names:
            return self.digests
        place = {name: i for i, name in enumerate(self.names)}
        padded = np.concatenate([self.digests, np.zeros((*self.digests.shape[:2], 1), np.uint64)], axis=2)
        return padded[:, :, [place.get(name, -1) for name in names]]

    @cached_property
    def silent(self) -> np.ndarray:
        """bool[M, W, 1]: ranks that told nothing of a moment; a record of state is whole or not there."""
        return (self.digests == 0).all(axis=2, keepdims=True)

    @cached_property
    def per_rank(self) -> frozenset[str]:
        """Names whose digests differ over the ranks at some moment: state that each rank has of its own."""
        own = (~replicated(self.digests)[1]).any(axis=0)
        return frozenset(name for name, differs in zip(self.names, own, strict=True) if differs)


@dataclass(frozen=True)
class SampleTable:
    """Consumed samples of one leg, one entry a sample and step, sorted by step and id."""

    steps: np.ndarray
    epochs: np.ndarray
    ids: np.ndarray

    def between(self, after: int, upto: int | None = None) -> SampleTable:
        """The samples of the steps after ``after``, up to and including ``upto``."""
        low = np.searchsorted(self.steps, after, "right")
        high = None if upto is None else np.searchsorted(self.steps, upto, "right")
        return SampleTable(self.steps[low:high], self.epochs[low:high], self.ids[low:high])

    def then(self, later: SampleTable) -> SampleTable:
        """These samples followed by those of later steps."""
        pairs = ((self.steps, later.steps), (self.epochs, later.epochs), (self.ids, later.ids))
        return SampleTable(*map(np.concatenate, pairs))

    @cached_property
    def steps_told(self) -> int:
        """How many steps there are."""
        return len(np.unique(self.steps))

    @cached_property
    def repeated(self) -> np.ndarray:
        """int64[n]: the epoch of each use of a sample that its epoch (told, so not -1) had used before."""
        order = np.lexsort((self.ids, self.epochs))
        epochs, ids = self.epochs[order], self.ids[order]
        return epochs[1:][(epochs[1:] == epochs[:-1]) & (ids[1:] == ids[:-1]) & (epochs[1:] >= 0)]


def replicated(digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The one value that all ranks which told anything of a moment agree on.

    A rank that told other entries of the moment and lacks this one does not agree.

    Args:
        digests: [M, W, N], 0 where nothing was told.

    Returns:
        The value [M, N] and whether the ranks agree [M, N].
    """
    value = digests.max(axis=1)
    silent = (digests == 0).all(axis=2, keepdims=True)
    return value, ((digests == value[:, None]) | silent).all(axis=1)


def union(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Ascending numbers that are in ``a`` or in ``b``, both ascending: most often they are the same."""
    return a if np.array_equal(a, b) else np.union1d(a, b)


def without(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Numbers of ``a`` that are not in ``b``, both ascending: most often they are the same."""
    return a[:0] if np.array_equal(a, b) else np.setdiff1d(a, b)


def _rows(arrays: Sequence[np.ndarray], have: np.ndarray, wanted: np.ndarray) -> list[np.ndarray]:
    """Rows of ``arrays``, which have one a key of ``have`` (ascending), for ``wanted`` keys (ascending); else zeros.

    Where the wanted keys stand in a row, as those of one leg after a step do, nothing is copied.
    """
    first = int(np.searchsorted(have, wanted[0])) if len(wanted) else 0
    if np.array_equal(have[first : first + len(wanted)], wanted):
        return [array[first : first + len(wanted)] for array in arrays]
    found = [np.zeros((len(wanted), *array.shape[1:]), array.dtype) for array in arrays]
    if len(have):
        place = np.minimum(np.searchsorted(have, wanted), len(have) - 1)
        there = have[place] == wanted
        for rows, array in zip(found, arrays, strict=True):
            rows[there] = array[place[there]]
    return found
