"""The reference trainer: the same run at every world size, after a kill, and started by hand."""

from __future__ import annotations

import ast
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from takeback.trainers import settings
from torchgroup import Group, Nursery

LAST = 24


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory) -> Group:
    return nursery.run(1, tmp_path_factory.mktemp("whole"))


def killed(nursery: Nursery, folder: Path, world: int, step: int, *arguments: str) -> Group:
    group = nursery.start(world, folder, *arguments, held=(world - 1, "step", step))
    group.wait_until_held(world - 1)
    group.kill(world - 1)
    assert -9 in group.wait()
    return group


def resumed(nursery: Nursery, folder: Path, world: int, parent: Group, *arguments: str) -> Group:
    """From a copy of the parent's checkpoints."""
    copy = folder / "ck"
    shutil.copytree(parent.folder / "ck", copy)
    return nursery.run(world, folder, *arguments)


def after(group: Group, step: int) -> dict[int, int]:
    return {number: bits for number, bits in group.losses().items() if number > step}


@pytest.mark.parametrize("world", [2, 4])
def test_losses_and_final_state_are_bit_equal_at_every_world_size(nursery, tmp_path, whole, world):
    group = nursery.run(world, tmp_path)
    for rank in range(world):
        assert group.losses(rank) == whole.losses()
        assert group.digests("end", rank) == whole.digests("end")
    assert [e["loss_bits"] for e in group.records("evaluated")] == [e["loss_bits"] for e in whole.records("evaluated")]
    assert {record["world"] for record in group.records("group_formed")} == {world}


@pytest.mark.parametrize(("step", "restored"), [(2, 0), (6, 4), (19, 16)])
def test_a_killed_run_goes_on_bit_equal_on_any_number_of_ranks(nursery, tmp_path, whole, step, restored):
    parent = killed(nursery, tmp_path / "killed", 2, step)
    for world in (1, 2, 4):
        if restored == 0:
            (tmp_path / "killed" / "ck").mkdir(exist_ok=True)
        group = resumed(nursery, tmp_path / f"resumed{world}", world, parent)
        assert group.records("restored")[0]["step"] == restored
        assert after(group, 0) == after(whole, restored)
        assert group.digests("end") == whole.digests("end")
        if restored:
            assert group.digests("loaded") == parent.digests("saved")


def test_streams_of_all_ranks_survive_a_kill(nursery, tmp_path):
    options = ("--rng", "stream", "--steps", "8")
    uninterrupted = nursery.run(2, tmp_path / "whole", *options)
    assert uninterrupted.digests("end", 0)["rng.torch"] != uninterrupted.digests("end", 1)["rng.torch"]
    parent = killed(nursery, tmp_path / "killed", 2, 6, *options)
    group = resumed(nursery, tmp_path / "resumed", 2, parent, *options)
    assert after(group, 0) == after(uninterrupted, 4)
    for rank in range(2):
        assert group.digests("end", rank) == uninterrupted.digests("end", rank)


@pytest.fixture(scope="module")
def stopped(nursery, tmp_path_factory) -> dict[str, Group]:
    """Killed in epoch 2, newest checkpoint 16, by kind of random numbers."""
    return {mode: killed(nursery, tmp_path_factory.mktemp(mode), 1, 19, "--rng", mode) for mode in ("keyed", "stream")}


@pytest.mark.parametrize("part", ["optimizer", "schedule", "ema", "sampler", "rng", "best"])
@pytest.mark.parametrize("mode", ["keyed", "stream"])
def test_a_forgotten_part_is_lost_and_no_other(nursery, tmp_path, stopped, part, mode):
    group = resumed(nursery, tmp_path, 1, stopped[mode], "--rng", mode, "--forget", part)
    assert group.records("restored")[0]["step"] == 16
    saved, loaded = stopped[mode].digests("saved"), group.digests("loaded")
    assert list(saved) == list(loaded)
    lost = {name.split(".")[0] for name in saved if saved[name] != loaded[name]}
    assert part in lost
    assert lost - {part} <= ({"optimizer"} if part == "schedule" else set())  # optimizer.group.*.lr follows


def test_each_forgotten_part_bites_where_it_should(nursery, tmp_path, whole, stopped):
    def first_difference(part: str, mode: str = "keyed") -> tuple[Group, int | None]:
        options = ("--rng", mode, "--forget", part)
        group = resumed(nursery, tmp_path / f"{part}-{mode}", 1, stopped[mode], *options)
        told = whole if mode == "keyed" else stopped["stream"]
        return group, next((s for s, bits in group.losses().items() if told.losses().get(s, bits) != bits), None)

    steps = {record["step"]: record for record in whole.records("step")}
    assert first_difference("optimizer")[1] == 18
    group, step = first_difference("schedule")
    assert step == 18
    assert group.records("step")[0]["lr"] == steps[1]["lr"] != steps[17]["lr"]
    group, step = first_difference("sampler")
    assert step == 17
    assert group.records("step")[0]["samples"] == steps[1]["samples"]
    group, step = first_difference("ema")
    assert step is None
    assert group.records("evaluated")[-1]["loss_bits"] != whole.records("evaluated")[-1]["loss_bits"]
    assert first_difference("best")[1] is None
    assert first_difference("rng")[1] is None
    assert first_difference("rng", "stream")[1] == 17


def test_a_forgotten_checkpoint_is_a_silent_start_from_scratch(nursery, tmp_path, whole, stopped):
    group = resumed(nursery, tmp_path, 1, stopped["keyed"], "--forget", "checkpoint")
    assert group.records("restored")[0]["step"] == 0
    assert group.losses() == whole.losses()


@pytest.mark.parametrize(("first", "second"), [(4, 2), (1, 4)])
def test_a_handover_in_memory_equals_a_restart_on_other_ranks(nursery, tmp_path, first, second):
    options = ("--reduction", "allreduce", "--steps", "12")
    handover = ("--handover", f"{first}:8:{second}")
    control = nursery.run(max(first, second), tmp_path / "control", *options, *handover)
    parent = killed(nursery, tmp_path / "killed", first, 10, *options)
    group = resumed(nursery, tmp_path / "resumed", second, parent, *options)
    assert group.records("restored")[0]["step"] == 8
    assert after(group, 0) == after(control, 8)
    assert group.digests("end") == control.digests("end")
    for rank in range(max(first, second)):
        expected = [*(range(1, 9) if rank < first else ()), *(range(9, 13) if rank < second else ())]
        assert list(control.losses(rank)) == expected


def test_a_handover_changes_nothing_where_the_order_is_fixed(nursery, tmp_path, whole):
    assert nursery.run(2, tmp_path, "--handover", "2:5:1").losses() == whole.losses()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stepz", "3"], "--stepz"),
        (["--loader", "threads"], "inline"),
        (["--backend", "mpi"], "gloo"),
        (["--steps", "many"], "--steps"),
        (["--shards", "6"], "4 ranks"),
        (["--heads", "5"], "--width"),
        (["--samples", "3"], "shards x batch"),
        (["--reduction", "buckets", "--precision", "bf16"], "not with precision bf16"),
        (["--strategy", "single"], "on 4 ranks: it holds the whole model on 1"),
        (["--strategy", "fsdp", "--timeout", "2"], "not with strategy fsdp"),
        (["--handover", "4:2"], "4:8:2"),
        (["--handover", "2:8:1"], "needs 2 ranks, 4 launched"),
        (["--save_every", "0"], "at least 1"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line_and_status_2(capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        settings.parse(["--checkpoints", "x", *arguments], 4, prog="reference", description=None)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and words in error


def commands() -> list[list[str]]:
    """The lines of the trainer's docstring that start it."""
    source = Path(settings.__file__).with_name("reference.py").read_text()
    lines = ast.get_docstring(ast.parse(source)).splitlines()
    return [shlex.split(line) for line in lines if line.startswith("    ")]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[0])
def test_the_commands_in_the_docstring_start_it(tmp_path, command):
    folder = tmp_path / "ck"
    arguments = [str(folder) if word == "/tmp/ck" else word for word in command]
    program = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
    result = subprocess.run(
        [*program[arguments[0]], *arguments[1:], "--steps", "4", "--warmup", "1"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("step 4 epoch 0 loss ")
    assert (folder / "latest").read_text() == "step-00000004.pt\n"


def test_a_rank_waits_for_a_silent_peer_as_long_as_the_timeout(nursery, tmp_path):
    """The peer holds itself: it is stopped, and its kernel goes on to answer for it."""
    group = nursery.start(2, tmp_path, "--timeout", "3", held=(1, "allreduce.in", 3))
    group.wait_until_held(1)
    while not (told := group.records("error")):
        time.sleep(0.01)
    assert "Timed out waiting 3000ms" in told[0]["text"]
    group.kill(1)
    assert group.wait() == [1, -9]


def test_a_survivor_can_not_form_a_new_group_by_itself(nursery, tmp_path):
    group = nursery.start(2, tmp_path, "--timeout", "2", "--survivors", "reinit", held=(1, "allreduce.in", 3))
    group.wait_until_held(1)
    group.kill(1)
    assert group.wait() == [1, -9]
    assert "Connection" in group.records("error")[0]["text"]
    assert "DistStoreError: wait timeout after 2000ms" in "\n".join(group.output())
