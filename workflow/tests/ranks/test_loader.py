"""Worker processes change nothing but time, and leave with their rank."""

from __future__ import annotations

import os
import select
from collections import Counter
from pathlib import Path

from torchgroup import Group, Nursery

SHORT = ("--steps", "10", "--save_every", "4")


def consumed(*groups: Group, ranks: int) -> dict[int, list[int]]:
    """Sample ids by step, over all ranks, in the order of the shards; a later group overwrites."""
    ids: dict[int, list[int]] = {}
    for group in groups:
        told = [record for rank in range(ranks) for record in group.records("step", rank)]
        for record in told:
            ids[record["step"]] = []
        for record in told:
            ids[record["step"]] += record["samples"]
    return ids


def test_workers_give_the_bits_and_the_samples_of_the_inline_loader(nursery: Nursery, tmp_path: Path):
    for rng in ("keyed", "stream"):
        inline = nursery.run(2, tmp_path / rng / "inline", *SHORT, "--rng", rng)
        workers = nursery.run(2, tmp_path / rng / "workers", *SHORT, "--rng", rng, "--loader", "workers")
        assert workers.losses() == inline.losses()
        assert consumed(workers, ranks=2) == consumed(inline, ranks=2)
        assert workers.digests("end") == inline.digests("end")


def test_a_resume_within_an_epoch_neither_repeats_nor_skips_what_workers_had_prefetched(nursery, tmp_path):
    whole = nursery.run(2, tmp_path / "whole", *SHORT)
    killed = nursery.start(2, tmp_path / "killed", *SHORT, "--loader", "workers", held=(1, "step", 6))
    killed.wait_until_held(1)
    killed.kill(1)
    killed.wait()
    folders = [tmp_path / "killed" / "ck"] * 2
    resumed = nursery.run(2, tmp_path / "resumed", *SHORT, "--loader", "workers", checkpoints=folders)
    assert resumed.records("restored")[0]["step"] == 4
    assert resumed.losses() == {step: bits for step, bits in whole.losses().items() if step > 4}
    ids = consumed(killed, resumed, ranks=2)
    first_epoch = Counter(sample for step in range(1, 9) for sample in ids[step])
    assert first_epoch == Counter(range(128))


def test_a_step_consumes_the_same_samples_at_every_world_size_and_each_epoch_has_its_own_order(nursery, tmp_path):
    alone = consumed(nursery.run(1, tmp_path / "1", "--steps", "16"), ranks=1)
    four = consumed(nursery.run(4, tmp_path / "4", "--steps", "16"), ranks=4)
    assert four == alone
    assert [alone[step] for step in range(1, 9)] != [alone[step] for step in range(9, 17)]
    assert Counter(sample for step in range(9, 17) for sample in alone[step]) == Counter(range(128))


def test_workers_die_with_their_rank(nursery, tmp_path):
    group = nursery.start(1, tmp_path, "--loader", "workers", held=(0, "step", 2))
    group.wait_until_held(0)
    rank = group.pids[0]
    children = Path(f"/proc/{rank}/task/{rank}/children").read_text().split()
    workers = [os.pidfd_open(int(pid)) for pid in children]
    assert len(workers) == 2
    group.kill(0)
    assert group.wait() == [-9]
    for worker in workers:
        assert select.select([worker], [], [], 2)[0], "a worker has outlived its rank"
        os.close(worker)


def test_too_little_text_is_one_line_that_says_what_to_do(nursery, tmp_path):
    group = nursery.start(1, tmp_path, "--samples", "100000000")
    assert group.wait() == [1]
    assert len(group.output()) == 1
    assert "install the sources" in group.output()[0]
    assert group.records("refused")
