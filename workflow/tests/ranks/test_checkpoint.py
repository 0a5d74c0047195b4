"""A checkpoint is whole or absent, and what can't be trusted is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torchgroup import Nursery

SHORT = ("--steps", "8", "--save_every", "4")


@pytest.fixture
def saved(nursery: Nursery, tmp_path: Path) -> Path:
    """Checkpoints of steps 4 and 8."""
    nursery.run(1, tmp_path / "first", *SHORT)
    return tmp_path / "first" / "ck"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(nursery: Nursery, tmp_path: Path, folder: Path, *arguments: str, world: int = 1) -> str:
    group = nursery.start(world, tmp_path / "second", "--steps", "9", *arguments, checkpoints=[folder] * world)
    assert group.wait() == [1] * world
    for rank in range(world):
        assert len(group.output(rank)) == 1
        assert group.records("refused", rank)
        assert not group.records("restored", rank)
    return group.output()[0]


def damage_torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_foreign(path: Path) -> None:
    path.write_bytes(b"not one of ours")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_torn, "is torn"),
        (damage_flipped, "is damaged"),
        (damage_foreign, "no checkpoint of this trainer"),
        (Path.unlink, "No such file"),
    ],
)
def test_what_is_not_what_was_written_is_refused(nursery, tmp_path, saved, damage, words):
    damage(saved / "step-00000008.pt")
    line = refusal(nursery, tmp_path, saved)
    assert words in line and "step-00000008.pt" in line


@pytest.mark.parametrize("damage", [damage_torn, damage_flipped, Path.unlink])
def test_a_fallback_goes_on_from_the_one_before_on_every_rank_and_tells_what_is_damaged(
    nursery, tmp_path, saved, damage
):
    damage(saved / "step-00000008.pt")
    options = ("--steps", "9", "--damaged", "fallback")
    group = nursery.run(2, tmp_path / "second", *options, checkpoints=[saved] * 2)
    for rank in range(2):
        (told,) = group.records("damaged", rank)
        assert (told["step"], told["file"]) == (8, "step-00000008.pt")
        assert group.records("restored", rank)[0]["step"] == 4


def test_where_no_checkpoint_is_whole_a_fallback_refuses(nursery, tmp_path, saved):
    damage_torn(saved / "step-00000008.pt")
    damage_flipped(saved / "step-00000004.pt")
    line = refusal(nursery, tmp_path, saved, "--damaged", "fallback")
    assert "no checkpoint is whole" in line and "is torn" in line and "is damaged" in line


def test_a_fallback_is_none_from_a_checkpoint_of_another_model(nursery, tmp_path, saved):
    assert "width is 32 there" in refusal(nursery, tmp_path, saved, "--width", "64", "--damaged", "fallback")


@pytest.mark.parametrize("text", ["", "step-000", "step-00000002.pt", None])
def test_a_pointer_that_no_save_has_left_is_damaged(nursery, tmp_path, saved, text):
    """Empty, a part of a name, older than two checkpoints; or it is gone, and they are there."""
    (saved / "latest").unlink()
    if text is not None:
        (saved / "latest").write_text(text)
    assert "latest: is damaged" in refusal(nursery, tmp_path, saved)
    group = nursery.run(1, tmp_path / "third", "--steps", "9", "--damaged", "fallback", checkpoints=[saved])
    assert [told["file"] for told in group.records("damaged")] == ["latest"]
    assert group.records("restored")[0]["step"] == 8


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(nursery, tmp_path, saved):
    assert "width is 32 there, 64 here" in refusal(nursery, tmp_path, saved, "--width", "64", world=2)


def test_ranks_that_restored_different_files_refuse_and_say_which_has_what(nursery, tmp_path, saved):
    nursery.run(1, tmp_path / "other", "--steps", "4", "--save_every", "4")
    folders = [saved, tmp_path / "other" / "ck"]
    group = nursery.start(2, tmp_path / "second", "--steps", "9", checkpoints=folders)
    assert group.wait() == [1, 1]
    for rank in range(2):
        (line,) = group.output(rank)
        assert "rank 0: step 8 epoch 1" in line and "rank 1: step 4 epoch 0" in line
        assert not group.records("step", rank)


def test_ranks_that_restored_the_same_step_of_another_state_refuse(nursery, tmp_path, saved):
    nursery.run(1, tmp_path / "other", *SHORT, "--seed", "99")
    folders = [saved, tmp_path / "other" / "ck"]
    group = nursery.start(2, tmp_path / "second", "--steps", "9", checkpoints=folders)
    assert group.wait() == [1, 1]
    assert "different states" in group.output()[0]


def test_one_rank_that_can_not_load_stops_all(nursery, tmp_path, saved):
    nursery.run(1, tmp_path / "other", *SHORT)
    damage_torn(tmp_path / "other" / "ck" / "step-00000008.pt")
    folders = [saved, tmp_path / "other" / "ck"]
    group = nursery.start(2, tmp_path / "second", "--steps", "9", checkpoints=folders)
    assert group.wait() == [1, 1]
    assert "rank 1: could not load" in group.output(0)[0]
    assert "is torn" in group.output(1)[0]


def test_the_last_n_are_kept_and_never_the_one_in_use_nor_a_stranger_removed(nursery, tmp_path, saved):
    (saved / "draft.tmp").touch()
    (saved / "others.dcp").mkdir()
    options = ("--steps", "16", "--save_every", "2", "--keep", "2")
    nursery.run(1, tmp_path / "second", *options, checkpoints=[saved])
    ours = ["latest", "step-00000008.pt", "step-00000014.pt", "step-00000016.pt"]
    assert names(saved) == ["draft.tmp", *ours[:1], "others.dcp", *ours[1:]]


@pytest.mark.parametrize(
    ("point", "restored"),
    [("save.begin", 4), ("save.write", 4), ("save.written", 4), ("save.commit", 4), ("save.pointer", 8)],
)
def test_a_kill_at_any_point_of_a_save_leaves_a_checkpoint_that_loads(nursery, tmp_path, point, restored):
    killed = nursery.start(1, tmp_path / "first", *SHORT, held=(0, point, 8))
    killed.wait_until_held(0)
    killed.kill(0)
    assert killed.wait() == [-9]
    folder = tmp_path / "first" / "ck"
    assert (folder / "step-00000008.pt.tmp").exists() == (point in ("save.write", "save.written"))
    resumed = nursery.run(1, tmp_path / "second", "--steps", "9", "--save_every", "3", checkpoints=[folder])
    assert resumed.records("restored")[0]["step"] == restored
    assert (folder / "latest").read_text() == "step-00000009.pt\n"
    assert not list(folder.glob("*.tmp")), "what the killed save left behind is still there"


def test_two_kills_between_completion_and_pointer_at_different_steps_leave_a_pointer_that_is_believed(
    nursery, tmp_path, saved
):
    for life, step in (("second", 12), ("third", 11)):
        options = ("--steps", "16", "--save_every", str(step))
        killed = nursery.start(1, tmp_path / life, *options, held=(0, "save.commit", step), checkpoints=[saved])
        killed.wait_until_held(0)
        killed.kill(0)
        killed.wait()
        assert (saved / f"step-{step:08}.pt").exists()
        assert (saved / "latest").read_text() == "step-00000008.pt\n"
    resumed = nursery.run(1, tmp_path / "fourth", "--steps", "9", checkpoints=[saved])
    assert resumed.records("restored")[0]["step"] == 8


def test_a_checkpoint_that_can_not_be_written_stops_all_ranks_and_harms_none_before(nursery, tmp_path, saved):
    before = {path: path.read_bytes() for path in saved.iterdir()}
    options = ("--steps", "9", "--save_every", "1")
    group = nursery.start(2, tmp_path / "second", *options, checkpoints=[saved] * 2, file_limit=500_000)
    assert group.wait() == [1, 1]
    assert "checkpoint of step 9 not written: File too large" in group.output(0)[0]
    assert "rank 0 could not write" in group.output(1)[0]
    assert {path: path.read_bytes() for path in saved.iterdir()} == before


def test_a_folder_that_can_not_be_used_is_one_line(nursery, tmp_path):
    (tmp_path / "file").touch()
    assert "Not a directory" in refusal(nursery, tmp_path, tmp_path / "file" / "ck")
