"""From the evidence of one leg to arrays, once, for all cells that use the leg.

A step or moment that several attempts of a leg have done counts as the last attempt did it.
"""

from __future__ import annotations

import hashlib
from binascii import unhexlify
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa

from takeback.bits import bits_of
from takeback.checkers.tables import MOMENTS, LossTable, SampleTable, StateTable


def number_tables(table: pa.Table, world: int) -> dict[str, LossTable]:
    """Prepare ``losses.parquet`` of a leg of ``world`` ranks; ValueError if a rank is none of them.

    Returns:
        ``loss``, and what was told beside it, ``grad_norm`` and ``lr``, of the steps of which it was told.
    """
    codes, dtypes = _codes(table, "loss_dtype")
    wide = np.array([dtype == "float64" for dtype in dtypes], bool)[codes]
    lr = table["lr"].to_numpy()
    norms = table["grad_norm_bits"]
    numbers = {
        "loss": (None, _integers(table, "loss_bits"), wide),
        # Its dtype is not told: equal bits of two dtypes are only the two zeros.
        "grad_norm": (_told(norms), (norms.fill_null(0) if norms.null_count else norms).to_numpy(), wide),
        "lr": (None if not np.isnan(lr).any() else ~np.isnan(lr), bits_of(lr, "float64"), np.ones(len(lr), bool)),
    }
    attempts, steps, ranks = _integers(table, "attempt"), _integers(table, "step"), _ranks(table, world)
    found, of_all = {}, None
    for name, (told, bits, is_wide) in numbers.items():
        chosen = _newest(attempts, steps, told)
        if chosen is None:  # the usual case: all three have the places of all rows
            of_all = of_all or _places(steps, ranks)
            found[name] = _loss_table(*of_all, world, bits, is_wide)
        else:
            found[name] = _loss_table(*_places(steps[chosen], ranks[chosen]), world, bits[chosen], is_wide[chosen])
    return found


def _places(steps: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps once each, ascending, and row and column of each record in a table of steps and ranks."""
    return (*np.unique(steps, return_inverse=True), ranks)


def _loss_table(
    steps: np.ndarray, row: np.ndarray, rank: np.ndarray, world: int, bits: np.ndarray, wide: np.ndarray
) -> LossTable:
    shape = (len(steps), world)
    found = LossTable(steps, np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, bool))
    found.bits[row, rank], found.told[row, rank], found.wide[row, rank] = bits, True, wide
    return found


def told_twice(losses: pa.Table, digests: pa.Table) -> str:
    """The first record of which one rank has told two in one attempt, in words; empty if there is none."""
    frame = losses.to_pandas()
    again = frame[frame.duplicated(["attempt", "rank", "step"])]
    for row in again.head(1).itertuples():
        return f"the loss of step {row.step} on rank {row.rank}"
    frame = digests.to_pandas()
    again = frame[frame.duplicated(["attempt", "rank", "step", "moment", "name"])]
    for row in again.head(1).itertuples():
        return f"the state entry {row.name} ({row.moment}, step {row.step}) on rank {row.rank}"
    return ""


def state_table(table: pa.Table, world: int) -> StateTable:
    """Prepare ``digests.parquet`` of a leg; ValueError if a digest is not 16 hex digits."""
    if not len(table):
        return StateTable(np.zeros(0, np.int64), (), np.zeros((0, world, 0), np.uint64))
    codes, moments = _codes(table, "moment")
    of_rows = _integers(table, "step") * len(MOMENTS) + np.array([MOMENTS[moment] for moment in moments])[codes]
    newest = _newest(_integers(table, "attempt"), of_rows)
    if newest is not None:
        table, of_rows = table.filter(pa.array(newest)), of_rows[newest]
    rank = _ranks(table, world)
    keys, row = np.unique(of_rows, return_inverse=True)
    column, names = _codes(table, "name")
    place = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(place, column, _integers(table, "order"))
    order = np.argsort(place, kind="stable")
    digests = np.zeros((len(keys), world, len(names)), np.uint64)
    digests[row, rank, np.argsort(order)[column]] = _numbers(table)
    return StateTable(keys, tuple(names[i] for i in order), digests)


def sample_table(table: pa.Table) -> SampleTable:
    """Prepare ``ledger.parquet`` of a leg."""
    newest = _newest(_integers(table, "attempt"), _integers(table, "step"))
    table = table if newest is None else table.filter(pa.array(newest))
    lists = _array(table, "sample_ids")
    many, ids = lists.value_lengths().to_numpy(), lists.flatten().to_numpy()
    steps = np.repeat(_integers(table, "step"), many)
    order = np.lexsort((ids, steps))
    return SampleTable(steps[order], np.repeat(_integers(table, "epoch"), many)[order], ids[order])


def _numbers(table: pa.Table) -> np.ndarray:
    """uint64[rows]: digest of the bytes, made to depend on dtype and shape as well.

    Zeros of two dtypes or shapes have the same bytes and are not the same state.
    """
    raw = unhexlify(_bytes(_array(table, "digest")))
    if len(raw) != 8 * len(table):
        raise ValueError("a digest is not 16 hex digits")
    (dtype, dtypes), (shape, shapes) = _codes(table, "dtype"), _codes(table, "shape")
    forms = np.array([[_form(d, s) for s in shapes] for d in dtypes], np.uint64)[dtype, shape]
    return np.frombuffer(raw, ">u8").astype(np.uint64) ^ forms


@cache
def _form(dtype: str, shape: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{dtype}/{shape}".encode()).digest()[:8], "big")


def _ranks(table: pa.Table, world: int) -> np.ndarray:
    rank = _integers(table, "rank")
    if len(rank) and (rank.max() >= world or rank.min() < 0):
        raise ValueError(f"a rank is outside its world of {world}")
    return rank


def _newest(attempts: np.ndarray, keys: np.ndarray, told: np.ndarray | None = None) -> np.ndarray | None:
    """Mask of the rows, of those that are ``told``, of the last attempt at each key; None if it is all rows."""
    if not len(attempts) or attempts.min() == attempts.max():
        return told
    chosen = np.ones(len(attempts), bool) if told is None else told.copy()
    attempts = attempts[chosen]
    chosen[chosen] = attempts == pd.Series(attempts).groupby(keys[chosen]).transform("max").to_numpy()
    return chosen


def _told(column: pa.ChunkedArray) -> np.ndarray | None:
    """Mask of the rows that have a value; None if all have."""
    return column.is_valid().to_numpy() if column.null_count else None


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _integers(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(np.int64, copy=False)


def _codes(table: pa.Table, name: str) -> tuple[np.ndarray, list[str]]:
    """A column of few words as numbers from 0 in the order of their appearance, and the words."""
    found = _array(table, name)
    if not isinstance(found, pa.DictionaryArray):
        found = found.dictionary_encode()
    codes, words = found.indices.to_numpy(), found.dictionary.to_pylist()
    if not np.bincount(codes, minlength=len(words)).all():  # of rows that were left out
        found = found.dictionary_decode().dictionary_encode()
        codes, words = found.indices.to_numpy(), found.dictionary.to_pylist()
    return codes, words


def _bytes(column: pa.StringArray) -> memoryview:
    """All texts of a column, one after the other."""
    _, offsets, data = column.buffers()
    first, last = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return memoryview(data)[first:last]
