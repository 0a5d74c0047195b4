"""State that goes by place in place of a name: every rank ends well, and has what is not its own."""

from __future__ import annotations

import pytest

SMALL = ("--steps", "2", "--save_every", "2", "--samples", "48", "--shards", "24", "--batch", "1", "--context", "16",
         "--width", "16", "--heads", "4")  # fmt: skip
MOMENT = "optimizer.exp_avg.blocks.{}.up.weight"


def again(nursery, folder, world, *options, then=()):
    """(saved, loaded) digests of each rank of a run that finds its own last checkpoint."""
    first = nursery.run(world, folder / "first", *SMALL, *options)
    kept = [folder / "first" / "ck"] * world
    second = nursery.run(world, folder / "second", *SMALL, *options, *then, checkpoints=kept)
    assert second.records("restored")[0]["step"] == 2
    return [(first.digests("saved", rank), second.digests("loaded", rank)) for rank in range(world)]


def test_an_optimizer_loaded_by_position_has_each_block_s_moments_swapped_and_nobody_objects(nursery, tmp_path):
    ((saved, loaded),) = again(nursery, tmp_path, 1, "--optimizer_by", "position", then=("--order", "reversed"))
    assert loaded[MOMENT.format(0)] == saved[MOMENT.format(1)] != saved[MOMENT.format(0)] == loaded[MOMENT.format(1)]
    wrong = {name for name in saved if loaded[name] != saved[name]}
    assert {name.split(".blocks.")[0] for name in wrong} == {"optimizer.exp_avg", "optimizer.exp_avg_sq"}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_optimizer_loaded_by_name_does_not_mind_the_order(nursery, tmp_path, strategy):
    for saved, loaded in again(nursery, tmp_path, 2, "--strategy", strategy, then=("--order", "reversed")):
        assert loaded == saved


@pytest.mark.parametrize("format", ["file", "dcp"])
@pytest.mark.parametrize("streams", ["by_rank", "one_key"])
def test_under_one_key_each_stream_is_one_rank_s_on_all_ranks(nursery, tmp_path, format, streams):
    ranks = again(nursery, tmp_path, 3, "--rng", "stream", "--format", format, "--streams", streams)
    for stream in ("rng.torch", "rng.python", "rng.numpy"):
        saved, loaded = [own[stream] for own, _ in ranks], [got[stream] for _, got in ranks]
        assert len(set(saved)) == 3
        if streams == "by_rank":
            assert loaded == saved
        else:
            assert len(set(loaded)) == 1 and set(loaded) < set(saved)
