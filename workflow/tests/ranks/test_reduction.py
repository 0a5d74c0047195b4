"""The sum of the virtual shards has the same bits at every world size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torchgroup import Nursery

SHARDS, LENGTH = 24, 1000

RANK = f"""
import os, sys
import numpy as np, torch, torch.distributed as dist
from takeback.trainers import reduction
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
leaves = list(torch.from_numpy(np.load(sys.argv[3])).chunk({SHARDS}))
each = {SHARDS} // world
mine = [leaf.reshape(-1) for leaf in leaves[rank * each : (rank + 1) * each]]
total = reduction.REDUCTIONS[sys.argv[4]](mine, dist.group.WORLD)
np.save(f"{{sys.argv[2]}}-{{rank}}.npy", total.numpy())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def leaves() -> np.ndarray:
    """Numbers of very different sizes, so that another order of adding gives another sum."""
    draw = np.random.default_rng(0)
    size = (SHARDS, LENGTH)
    return (draw.standard_normal(size) * 10.0 ** draw.integers(-3, 4, size)).astype(np.float32)


def reduced(nursery: Nursery, folder: Path, world: int, leaves: np.ndarray, how: str) -> list[np.ndarray]:
    script = folder / "rank.py"
    script.write_text(RANK)
    np.save(folder / "leaves.npy", leaves)
    result = folder / "total"
    nursery.run(
        world,
        folder / "out",
        str(folder / "leaves.npy"),
        how,
        checkpoints=[result] * world,
        target=str(script),
    )
    return [np.load(f"{result}-{rank}.npy") for rank in range(world)]


def by_the_definition(leaves: np.ndarray) -> np.ndarray:
    """24 = 3 * 2**3: eight sums of three left to right, then pairwise."""
    sums = [(leaves[i] + leaves[i + 1]) + leaves[i + 2] for i in range(0, SHARDS, 3)]
    fours = [sums[i] + sums[i + 1] for i in range(0, 8, 2)]
    return (fours[0] + fours[1]) + (fours[2] + fours[3])


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8])
def test_the_fixed_order_sum_has_the_bits_of_its_definition(nursery, tmp_path, leaves, world):
    expected = by_the_definition(leaves)
    for total in reduced(nursery, tmp_path, world, leaves, "fixed-order"):
        assert total.tobytes() == expected.tobytes()


def test_the_numbers_tell_orders_apart(leaves):
    left_to_right = leaves[0].copy()
    for leaf in leaves[1:]:
        left_to_right += leaf
    assert left_to_right.tobytes() != by_the_definition(leaves).tobytes()


def test_allreduce_gives_one_sum_on_all_ranks_close_to_the_true_one(nursery, tmp_path, leaves):
    totals = reduced(nursery, tmp_path, 3, leaves, "allreduce")
    assert len({total.tobytes() for total in totals}) == 1
    np.testing.assert_allclose(totals[0], leaves.astype(np.float64).sum(0), rtol=1e-3, atol=1e-2)
