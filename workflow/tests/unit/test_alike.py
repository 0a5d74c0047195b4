"""Tables that are alike are found so without a distance, and everything is said as if there had been one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from takeback.checkers import compare
from takeback.checkers.tables import LossTable

NAN = 0x7FC00000


def table(bits, wide=False):
    bits = np.array(bits, np.int64)
    return LossTable(np.arange(1, len(bits) + 1), bits, np.ones(bits.shape, bool), np.full(bits.shape, wide))


@pytest.mark.parametrize("by_rank", [True, False])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (table([[1, 1], [2, 2]]), table([[1, 1], [2, 2]])),
        (table([[1, 1], [NAN, NAN]]), table([[1, 1], [NAN, NAN]])),
        (table([[1, 1], [2, 2]], wide=True), table([[1, 1], [2, 2]], wide=True)),
        (table([[1, 1], [2, 2]], wide=True), table([[1, 1], [2, 2]])),
        (table([[1, 1], [2, 2]]), table([[1, 3], [2, 3]])),  # each rank of the right leg told its own
        (table([[1, 1], [2, 3]]), table([[1, 1], [2, 2]])),
    ],
)
def test_the_short_way_finds_what_the_long_way_finds(left, right, by_rank, monkeypatch):
    short = dataclasses.asdict(compare.compare_losses(left, right, by_rank))
    monkeypatch.setattr(compare, "_alike", lambda *_: False)
    long = dataclasses.asdict(compare.compare_losses(left, right, by_rank))
    for name, value in long.items():
        np.testing.assert_array_equal(short[name], value, err_msg=name)
