"""bf16 in forward and backward over fp32 masters: the same bits under every strategy; what a load does to dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchgroup import Group, Nursery

SMALL = [
    *("--precision", "bf16", "--steps", "4", "--save_every", "2", "--evaluate_every", "2"),
    *("--layers", "1", "--width", "16", "--context", "16", "--shards", "6", "--batch", "1", "--samples", "24"),
]


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory) -> Group:
    return nursery.run(1, tmp_path_factory.mktemp("whole"), *SMALL, "--strategy", "single")


def restarted(nursery: Nursery, folder: Path, parent: Group, *arguments: str) -> Group:
    """Two steps more, from the checkpoint of step 2."""
    checkpoints = folder / "ck"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step-00000002.pt").symlink_to(parent.folder / "ck" / "step-00000002.pt")
    (checkpoints / "latest").write_text("step-00000002.pt\n")
    return nursery.run(1, folder, *SMALL, *arguments)


def saved(group: Group) -> dict[str, str]:
    """What the checkpoint of step 2 has: digest by name."""
    told = next(record for record in group.records("digest") if (record["moment"], record["step"]) == ("saved", 2))
    return {name: digest for name, _, _, digest in told["entries"]}


@pytest.mark.parametrize(("strategy", "world"), [("ddp", 2), ("fsdp", 3), ("hsdp", 2)])
def test_mixed_precision_has_the_bits_of_one_rank_under_every_strategy(nursery, tmp_path, whole, strategy, world):
    group = nursery.run(world, tmp_path, *SMALL, "--strategy", strategy)
    assert group.losses() == whole.losses()
    assert group.digests("end") == whole.digests("end")
    assert [e["loss_bits"] for e in group.records("evaluated")] == [e["loss_bits"] for e in whole.records("evaluated")]


def test_forward_and_backward_are_of_the_precision_and_all_that_is_kept_is_fp32(nursery, tmp_path, whole):
    full = nursery.run(1, tmp_path, *SMALL, "--precision", "fp32")
    assert full.losses()[1] != whole.losses()[1]
    entries = [entry for record in whole.records("digest") for entry in record["entries"]]
    kept = {dtype for name, dtype, _, _ in entries if name.startswith(("model.", "ema.", "optimizer.exp_avg"))}
    assert kept == {"float32"}
    assert {record["loss_dtype"] for record in whole.records("step")} == {"float32"}
    dtype = next(record["facts"]["dtype"] for record in whole.records("described") if "dtype" in record["facts"])
    assert "bfloat16" in dtype and "float32" in dtype


@pytest.mark.parametrize(
    ("rounded", "changed"),
    [("none", ()), ("moments", ("optimizer.exp_avg.", "optimizer.exp_avg_sq.")), ("masters", ("model.",))],
)
def test_what_is_rounded_on_the_way_is_seen_by_name_before_any_loss(nursery, tmp_path, whole, rounded, changed):
    group = restarted(nursery, tmp_path, whole, "--rounded", rounded)
    before, loaded = saved(whole), group.digests("loaded")
    different = {name for name in before if loaded[name] != before[name]}
    assert all(name.startswith(changed) for name in different)
    assert all(any(name.startswith(prefix) for name in different) for prefix in changed)
    # The first loss is that of masters rounded either way, and has no moment in it.
    assert group.losses()[3] == whole.losses()[3]
    assert (group.losses()[4] == whole.losses()[4]) == (not changed)


def test_torch_rounds_the_moments_of_bf16_parameters_when_it_loads_them_and_keeps_those_of_masters():
    """Optimizer.load_state_dict casts state to the parameter's dtype (torch/optim/optimizer.py), in silence."""
    import torch

    def loaded(dtype: torch.dtype) -> torch.Tensor:
        parameter = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
        optimizer = torch.optim.AdamW([parameter])
        optimizer.load_state_dict(
            {**optimizer.state_dict(), "state": {0: {"step": torch.tensor(1.0), "exp_avg": moments}}}
        )
        return optimizer.state[parameter]["exp_avg"]

    moments = torch.tensor([1 / 3, 0.1, 1e-8])
    assert loaded(torch.bfloat16).dtype == torch.bfloat16
    assert loaded(torch.bfloat16).float().tolist() != moments.tolist()
    assert loaded(torch.float32).tolist() == moments.tolist()
