"""DistributedDataParallel's own buckets: the bits of a plain sum, others after a restart, and what undoes that."""

from __future__ import annotations

import pytest
from takeback.trainers import settings

SMALL = ("--steps", "4", "--samples", "48", "--shards", "24", "--batch", "1", "--context", "16", "--width", "16",
         "--heads", "4", "--layers", "1")  # fmt: skip


def test_two_ranks_have_the_weights_of_a_plain_sum_and_neither_remedy_changes_any_state(nursery, tmp_path):
    plain = nursery.run(2, tmp_path / "plain", *SMALL, "--reduction", "allreduce")
    for remedy in ("rebuilt", "find_unused", "warmed"):
        group = nursery.run(2, tmp_path / remedy, *SMALL, "--reduction", "buckets", "--buckets", remedy)
        for rank in range(2):
            assert group.digests("loaded", rank) == plain.digests("loaded", rank)  # names too
            assert group.digests("end", rank) == plain.digests("end", rank)


@pytest.mark.parametrize(("remedy", "same"), [("rebuilt", False), ("find_unused", True), ("warmed", True)])
def test_a_fresh_wrapper_on_three_ranks_adds_up_in_another_order_without_a_remedy(nursery, tmp_path, remedy, same):
    options = (*SMALL, "--reduction", "buckets", "--buckets", remedy)
    whole = nursery.run(3, tmp_path / "whole", *options)
    fresh = nursery.run(3, tmp_path / "fresh", *options, "--handover", "3:2:3")
    assert (fresh.digests("end") == whole.digests("end")) == same


def test_a_bucket_has_the_size_that_is_asked_for(nursery, tmp_path):
    """By what another size changes: which elements are added in which order."""
    options = (*SMALL, "--reduction", "buckets")
    group = nursery.run(3, tmp_path / "sized", *options, "--bucket_mb", "0.004")
    usual = nursery.run(3, tmp_path / "usual", *options)
    assert group.digests("end") != usual.digests("end")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--reduction", "buckets", "--strategy", "fsdp"], "DistributedDataParallel"),
        (["--reduction", "buckets", "--handover", "4:8:2:fsdp"], "DistributedDataParallel"),
        (["--optimizer_by", "position", "--strategy", "fsdp"], "whole tensors"),
        (["--optimizer_by", "position", "--format", "dcp"], "one file"),
        (["--bucket_mb", "-1"], "--bucket_mb"),
    ],
)
def test_what_does_not_go_together_is_one_line_and_status_2(capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        settings.parse(["--checkpoints", "x", *arguments], 4, prog="reference", description=None)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and words in error
