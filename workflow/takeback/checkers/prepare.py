"""From the evidence of one leg to arrays, once, for all cells that use the leg.

A step or moment that several attempts of a leg have done counts as the last attempt did it.
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import pandas as pd

from takeback.bits import bits_of
from takeback.checkers.tables import MOMENTS, LossTable, SampleTable, StateTable


def loss_table(frame: pd.DataFrame, world: int) -> LossTable:
    """Prepare ``losses.parquet`` of a leg of ``world`` ranks; ValueError if a rank is none of them."""
    frame = _last_attempt(frame)
    rank = _ranks(frame, world)
    steps, row = np.unique(frame["step"].to_numpy(np.int64), return_inverse=True)
    shape = (len(steps), world)
    bits, told, wide = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, bool)
    bits[row, rank] = frame["loss_bits"].to_numpy(np.int64)
    wide[row, rank] = frame["loss_dtype"].to_numpy(object) == "float64"
    told[row, rank] = True
    return LossTable(steps, bits, told, wide)


def number_table(frame: pd.DataFrame, world: int, name: str) -> LossTable:
    """Prepare what was told beside the loss, ``grad_norm`` or ``lr``, of the steps of which it was told."""
    if name == "lr":
        frame = frame[frame["lr"].notna()]
        told = frame.assign(loss_bits=bits_of(frame["lr"].to_numpy("float64"), "float64"), loss_dtype="float64")
    else:
        # Its dtype is not told: equal bits of two dtypes are only the two zeros.
        frame = frame[frame["grad_norm_bits"].notna()]
        told = frame.assign(loss_bits=frame["grad_norm_bits"].to_numpy("int64"))
    return loss_table(told, world)


def told_twice(losses: pd.DataFrame, digests: pd.DataFrame) -> str:
    """The first record of which one rank has told two in one attempt, in words; empty if there is none."""
    again = losses[losses.duplicated(["attempt", "rank", "step"])]
    for row in again.head(1).itertuples():
        return f"the loss of step {row.step} on rank {row.rank}"
    again = digests[digests.duplicated(["attempt", "rank", "step", "moment", "name"])]
    for row in again.head(1).itertuples():
        return f"the state entry {row.name} ({row.moment}, step {row.step}) on rank {row.rank}"
    return ""


def state_table(frame: pd.DataFrame, world: int) -> StateTable:
    """Prepare ``digests.parquet`` of a leg; ValueError if a digest is not 16 hex digits."""
    if not len(frame):
        return StateTable(np.zeros(0, np.int64), (), np.zeros((0, world, 0), np.uint64))
    moments = frame["moment"].tolist()
    of_rows = frame["step"].to_numpy(np.int64) * len(MOMENTS)
    of_rows += np.fromiter(map(MOMENTS.__getitem__, moments), np.int64, len(moments))
    newest = _newest(frame, of_rows)
    frame, of_rows = (frame, of_rows) if newest is None else (frame[newest], of_rows[newest])
    rank = _ranks(frame, world)
    keys, row = np.unique(of_rows, return_inverse=True)
    column, names = pd.factorize(frame["name"].to_numpy(object))
    place = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(place, column, frame["order"].to_numpy(np.int64))
    order = np.argsort(place, kind="stable")
    digests = np.zeros((len(keys), world, len(names)), np.uint64)
    digests[row, rank, np.argsort(order)[column]] = _numbers(frame)
    return StateTable(keys, tuple(names[order]), digests)


def sample_table(frame: pd.DataFrame) -> SampleTable:
    """Prepare ``ledger.parquet`` of a leg."""
    frame = _last_attempt(frame)
    lists = frame["sample_ids"].to_numpy(object)
    many = np.fromiter(map(len, lists), np.int64, len(lists))
    ids = np.concatenate([np.zeros(0, np.int64), *lists]).astype(np.int64)
    steps = np.repeat(frame["step"].to_numpy(np.int64), many)
    order = np.lexsort((ids, steps))
    return SampleTable(steps[order], np.repeat(frame["epoch"].to_numpy(np.int64), many)[order], ids[order])


def _numbers(frame: pd.DataFrame) -> np.ndarray:
    """uint64[rows]: digest of the bytes, made to depend on dtype and shape as well.

    Zeros of two dtypes or shapes have the same bytes and are not the same state.
    """
    raw = bytes.fromhex("".join(frame["digest"].tolist()))
    if len(raw) != 8 * len(frame):
        raise ValueError("a digest is not 16 hex digits")
    forms = np.fromiter(map(_form, frame["dtype"].tolist(), frame["shape"].tolist()), np.uint64, len(frame))
    return np.frombuffer(raw, ">u8").astype(np.uint64) ^ forms


@cache
def _form(dtype: str, shape: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{dtype}/{shape}".encode()).digest()[:8], "big")


def _ranks(frame: pd.DataFrame, world: int) -> np.ndarray:
    rank = frame["rank"].to_numpy(np.int64)
    if len(rank) and (rank.max() >= world or rank.min() < 0):
        raise ValueError(f"a rank is outside its world of {world}")
    return rank


def _last_attempt(frame: pd.DataFrame) -> pd.DataFrame:
    newest = _newest(frame, frame["step"].to_numpy())
    return frame if newest is None else frame[newest]


def _newest(frame: pd.DataFrame, keys: np.ndarray) -> np.ndarray | None:
    """Mask of the rows of the last attempt at each key; None if all rows are of one attempt."""
    attempts = frame["attempt"].to_numpy()
    if not len(attempts) or attempts.min() == attempts.max():
        return None
    return attempts == pd.Series(attempts).groupby(keys).transform("max").to_numpy()
