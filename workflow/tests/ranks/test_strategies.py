"""A model that is spread over ranks: the same run, whoever holds which part of it, and whoever reads what it saved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from takeback.trainers import mesh
from torchgroup import Group, Nursery

SMALL = [
    "--steps",
    "4",
    "--save_every",
    "2",
    "--evaluate_every",
    "2",
    "--layers",
    "1",
    "--width",
    "16",
    "--context",
    "16",
    "--heads",
    "4",
    "--batch",
    "1",
    "--shards",
    "12",
    "--samples",
    "24",
]

WHOLE = """
import json, sys
import torch, torch.distributed as dist
from torch.distributed.tensor import DTensor
from takeback.trainers import settings, strategies
from takeback.trainers.build import build
from takeback.trainers.strategies.whole import whole
dist.init_process_group("gloo")
cfg = settings.parse(sys.argv[1:], dist.get_world_size(), prog="test", description=None)
state = build(cfg, strategies.of(cfg, cfg.strategy, dist.get_world_size(), torch.device("cpu")))
shards = [parameter.detach() for parameter in state.model.parameters()]
shards += [slot["exp_avg"] for slot in state.optimizer.state.values()]
shards += [torch.arange(7, dtype=torch.bfloat16)]
for together, shard in zip(whole(shards), shards, strict=True):
    alone = shard.full_tensor() if isinstance(shard, DTensor) else shard
    assert torch.equal(together, alone) and together.dtype == alone.dtype
print(sum(isinstance(shard, DTensor) for shard in shards))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def one(nursery: Nursery, tmp_path_factory) -> Group:
    """One rank that holds all."""
    return nursery.run(1, tmp_path_factory.mktemp("one"), *SMALL, "--strategy", "single")


def goes_on(nursery: Nursery, folder: Path, parent: Group, world: int, *arguments: str) -> Group:
    """From the checkpoints of ``parent``, of which its last one is removed."""
    shutil.copytree(parent.folder / "ck", folder / "ck")
    names = sorted(path.name for path in (folder / "ck").glob("step-*"))
    last = folder / "ck" / names[-1]
    shutil.rmtree(last) if last.is_dir() else last.unlink()
    (folder / "ck" / "latest").write_text(f"{names[-2]}\n")
    return nursery.run(world, folder, *SMALL, *arguments)


@pytest.mark.parametrize(
    ("strategy", "world", "form"),
    [
        ("ddp", 3, "dcp"),
        ("fsdp", 1, "dcp"),
        ("fsdp", 3, "file"),
        ("fsdp", 4, "dcp-async"),
        ("hsdp", 4, "dcp"),
    ],
)
def test_a_run_has_the_same_bits_however_its_state_is_spread(nursery, tmp_path, one, strategy, world, form):
    group = nursery.run(world, tmp_path, *SMALL, "--strategy", strategy, "--format", form)
    for rank in range(world):
        assert group.losses(rank) == one.losses()
        assert group.digests("end", rank) == one.digests("end")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("fsdp", 4, "dcp"), ("ddp", 2, "file")),
        (("ddp", 2, "file"), ("fsdp", 3, "dcp")),
        (("hsdp", 4, "file"), ("single", 1, "dcp-async")),
    ],
)
def test_what_one_strategy_saved_another_reads_by_name_on_another_number_of_ranks(
    nursery, tmp_path, one, first, second
):
    strategy, world, form = first
    parent = nursery.run(world, tmp_path / "first", *SMALL, "--strategy", strategy, "--format", form)
    strategy, world, form = second
    group = goes_on(nursery, tmp_path / "second", parent, world, "--strategy", strategy, "--format", form)
    assert group.records("restored")[0]["step"] == 2
    assert group.losses() == {step: bits for step, bits in one.losses().items() if step > 2}
    assert group.digests("end", world - 1) == one.digests("end")


def test_ranks_that_share_a_layer_add_in_as_many_parts_however_many_groups_there_are(nursery, tmp_path):
    two = nursery.run(2, tmp_path / "two", *SMALL, "--strategy", "tp", "--format", "dcp")
    four = nursery.run(4, tmp_path / "four", *SMALL, "--strategy", "fsdp+tp", "--format", "dcp")
    assert four.losses() == two.losses()
    assert four.digests("end", 3) == two.digests("end")
    told = [len(record["samples"]) for rank in range(4) for record in four.records("step", rank)[:1]]
    assert told == [6, 0, 6, 0], "of ranks that have the same samples one tells them"


def test_a_handover_to_another_strategy_equals_a_restart_through_a_checkpoint(nursery, tmp_path):
    through = nursery.run(2, tmp_path / "two", *SMALL, "--strategy", "fsdp", "--format", "dcp")
    resumed = goes_on(nursery, tmp_path / "resumed", through, 2, "--strategy", "tp")
    control = nursery.run(2, tmp_path / "control", *SMALL, "--strategy", "fsdp", "--handover", "2:2:2:tp")
    assert resumed.losses() == {step: bits for step, bits in control.losses().items() if step > 2}
    assert resumed.digests("end") == control.digests("end")


@pytest.mark.parametrize(("strategy", "world"), [("fsdp", 3), ("hsdp", 4), ("tp", 2), ("fsdp+tp", 4)])
def test_whole_tensors_are_those_that_full_tensor_gives(nursery, tmp_path, strategy, world):
    script = tmp_path / "whole.py"
    script.write_text(WHOLE)
    group = nursery.run(world, tmp_path / "out", *SMALL, "--strategy", strategy, target=str(script))
    assert int(group.output()[-1]) > 0


@pytest.mark.parametrize(
    ("strategy", "ranks", "words"),
    [("single", 2, "it holds the whole model on 1"), ("hsdp", 3, "shard_ranks, 2"), ("fsdp+tp", 3, "tensor_ranks, 2")],
)
def test_a_strategy_that_can_not_have_this_many_ranks_says_so(strategy, ranks, words):
    with pytest.raises(ValueError, match=words):
        mesh.dimensions(strategy, ranks, shard_ranks=2, tensor_ranks=2)


def test_ranks_that_can_not_have_a_strategy_end_with_one_line_each(nursery, tmp_path):
    group = nursery.start(3, tmp_path, *SMALL, "--strategy", "hsdp")
    assert group.wait() == [2, 2, 2]
    assert [len(group.output(rank)) for rank in range(3)] == [1, 1, 1]
    assert "does not divide them" in group.output(0)[0]
