"""A directory that all ranks write is whole or absent, and what can't be trusted is refused on every rank."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from torchgroup import Group, Nursery

SMALL = ("--layers", "1", "--width", "16", "--context", "16", "--samples", "24", "--shards", "4", "--batch", "1")
SHARDED = ("--strategy", "fsdp", "--format", "dcp")
NEWEST = "step-00000008.dcp"


@pytest.fixture(scope="module")
def written(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 4 and 8, by two ranks; nobody may change them."""
    folder = tmp_path_factory.mktemp("written")
    nursery.run(2, folder, *SMALL, *SHARDED, "--steps", "8")
    return folder / "ck"


@pytest.fixture
def saved(written: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(written, tmp_path / "saved")


def told(group: Group, moment: str, step: int, rank: int = 0) -> dict[str, str]:
    """Digest by name of the state that was told at ``moment``."""
    (found,) = [one for one in group.records("digest", rank) if (one["moment"], one["step"]) == (moment, step)]
    return {name: digest for name, _, _, digest in found["entries"]}


def resume(nursery: Nursery, folder: Path, checkpoints: Path, *arguments: str, world: int = 2) -> Group:
    options = (*SMALL, *SHARDED, "--steps", "9", "--save_every", "9", *arguments)
    return nursery.start(world, folder, *options, checkpoints=[checkpoints] * world)


def refusals(group: Group) -> list[str]:
    """The one line of each rank."""
    assert group.wait() == [1, 1], [group.output(rank) for rank in range(2)]
    for rank in range(2):
        assert len(group.output(rank)) == 1, group.output(rank)
        assert not group.records("restored", rank)
    return [group.output(rank)[0] for rank in range(2)]


def test_what_a_killed_save_has_left_is_no_checkpoint_that_is_damaged(nursery, tmp_path, saved):
    """Without a pointer that can be believed the newest complete one is looked for."""
    left = shutil.copytree(saved / NEWEST, saved / "step-00000012.dcp")
    (left / "manifest.json").unlink()
    (saved / "latest").write_text("no name")
    group = resume(nursery, tmp_path / "second", saved, "--damaged", "fallback")
    assert group.wait() == [0, 0]
    for rank in range(2):
        assert [told["file"] for told in group.records("damaged", rank)] == ["latest"]
        assert group.records("restored", rank)[0]["step"] == 8


@pytest.mark.parametrize(
    ("rank", "point", "restored", "format"),
    [
        (0, "save.begin", 4, "dcp"),
        (1, "save.begin", 4, "dcp-async"),
        (0, "save.write", 4, "dcp"),
        (1, "save.write", 4, "dcp"),
        (0, "save.write", 4, "dcp-async"),
        (1, "save.write", 4, "dcp-async"),
        (0, "save.written", 4, "dcp"),
        (1, "save.written", 4, "dcp"),
        (1, "save.written", 4, "dcp-async"),
        (0, "save.commit", 4, "dcp"),
        (0, "save.commit", 4, "dcp-async"),
        (0, "save.pointer", 8, "dcp"),
        (0, "save.pointer", 8, "dcp-async"),
        (0, "save.retire", 8, "dcp"),
    ],
)
def test_a_save_that_is_killed_is_not_taken_for_complete(nursery, tmp_path, rank, point, restored, format):
    options = (*SMALL, "--strategy", "fsdp", "--format", format, "--steps", "9", "--keep", "1")
    killed = nursery.start(2, tmp_path / "first", *options, held=(rank, point, 8))
    killed.wait_until_held(rank)
    killed.kill(rank)
    statuses = killed.wait()
    assert statuses[rank] == -9 and statuses[1 - rank] != 0
    folder = tmp_path / "first" / "ck"
    resumed = resume(nursery, tmp_path / "second", folder, "--strategy", "single", world=1)
    assert resumed.wait() == [0], resumed.output()
    assert resumed.records("restored")[0]["step"] == restored
    assert told(resumed, "loaded", restored) == told(killed, "saved", restored)
    assert (folder / "latest").read_text() == "step-00000009.dcp\n"
    assert all((path / "manifest.json").exists() for path in folder.glob("step-*")), "an incomplete one is still there"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def of_the_one_before(file: Path) -> None:
    before = file.parents[1] / "step-00000004.dcp" / file.name
    assert before.stat().st_size == file.stat().st_size or file.name == "manifest.json"
    assert before.read_bytes() != file.read_bytes()
    shutil.copyfile(before, file)


DAMAGED = "is damaged: its content does not have its checksum"


@pytest.mark.parametrize("damaged", ["refuse", "fallback"])
@pytest.mark.parametrize(
    ("damage", "name", "words"),
    [
        (Path.unlink, "__0_0.distcp", "can't be read: No such file"),
        (Path.unlink, "__1_0.distcp", "can't be read: No such file"),
        (Path.unlink, ".metadata", "can't be read: No such file"),
        (Path.unlink, "manifest.json", "is not complete"),
        (flip, "__1_0.distcp", DAMAGED),
        (flip, ".metadata", DAMAGED),
        (flip, "manifest.json", "is damaged"),
        (of_the_one_before, "__1_0.distcp", DAMAGED),
        (of_the_one_before, ".metadata", DAMAGED),
        (of_the_one_before, "manifest.json", "is damaged"),
    ],
)
def test_a_torn_directory_is_refused_on_every_rank_or_the_one_before_is_restored(
    nursery, tmp_path, saved, damage, name, words, damaged
):
    damage(saved / NEWEST / name)
    group = resume(nursery, tmp_path / "second", saved, "--damaged", damaged)
    if damaged == "refuse":
        lines = refusals(group)
        assert any(words in line and NEWEST in line for line in lines), lines
        assert all((words in line) or ("could not load" in line) for line in lines), lines
        return
    assert group.wait() == [0, 0], [group.output(rank) for rank in range(2)]
    for rank in range(2):
        (one,) = group.records("damaged", rank)
        assert (one["step"], one["file"]) == (8, NEWEST) and words in one["reason"]
        assert group.records("restored", rank)[0]["step"] == 4


def test_what_one_rank_finds_damaged_no_rank_restores(nursery, tmp_path, saved, written):
    flip(saved / NEWEST / "__1_0.distcp")
    options = (*SMALL, *SHARDED, "--steps", "9", "--save_every", "10", "--damaged", "fallback")
    group = nursery.run(2, tmp_path / "second", *options, checkpoints=[written, saved])
    for rank in range(2):
        (one,) = group.records("damaged", rank)
        assert one["file"] == NEWEST and one["reason"].startswith("rank 1: ") == (rank == 0)
        assert group.records("restored", rank)[0]["step"] == 4


@pytest.mark.parametrize("format", ["file", "dcp"])
def test_a_whole_checkpoint_under_the_name_of_another_step_is_damaged(nursery, tmp_path, written, format):
    saved = tmp_path / "saved"
    if format == "dcp":
        shutil.copytree(written / "step-00000004.dcp", saved / NEWEST)
    else:
        nursery.run(1, tmp_path / "first", *SMALL, "--steps", "4")
        saved.mkdir()
        shutil.copyfile(tmp_path / "first/ck/step-00000004.pt", saved / "step-00000008.pt")
    (saved / "latest").write_text(next(saved.glob("step-*")).name)
    (line, _) = refusals(resume(nursery, tmp_path / "second", saved))
    assert "is damaged: it is that of step 4" in line


def test_a_file_that_the_manifest_does_not_list_is_not_read(nursery, tmp_path, saved):
    reseal(saved / NEWEST, lambda manifest: manifest["files"].pop("__1_0.distcp"))
    lines = refusals(resume(nursery, tmp_path / "second", saved))
    assert any("__1_0.distcp: is not in manifest.json: it is of another save" in line for line in lines)


def reseal(folder: Path, change) -> None:
    """Change a manifest as another trainer would have written it: with a checksum that is right."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    change(manifest)
    checksum = hashlib.sha256(json.dumps(manifest, indent=1).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "sha256": checksum}))


@pytest.mark.parametrize("damaged", ["refuse", "fallback"])
def test_a_checkpoint_of_another_model_is_refused_and_no_damaged_one(nursery, tmp_path, saved, damaged):
    for line in refusals(resume(nursery, tmp_path / "second", saved, "--width", "32", "--damaged", damaged)):
        assert f"{NEWEST}: is of another run: width is 16 there, 32 here" in line
        assert "no checkpoint is whole" not in line, "nobody looked for an older one"


def test_a_manifest_that_was_altered_is_damaged(nursery, tmp_path, saved):
    manifest = saved / NEWEST / "manifest.json"
    altered = manifest.read_text().replace('"step": 8', '"step": 9')
    assert altered != manifest.read_text()
    manifest.write_text(altered)
    for line in refusals(resume(nursery, tmp_path / "second", saved)):
        assert "manifest.json: is damaged" in line


def test_a_checkpoint_of_a_newer_format_is_refused(nursery, tmp_path, saved):
    reseal(saved / NEWEST, lambda manifest: manifest["run"].update(format=2))
    for line in refusals(resume(nursery, tmp_path / "second", saved, "--damaged", "fallback")):
        assert f"{NEWEST}: is of a newer trainer: format 2; this trainer reads 1" in line


IN_PLACE = str(Path(__file__).with_name("in_place.py"))


def loads(nursery: Nursery, folder: Path, checkpoints: Path, *arguments: str) -> list[dict]:
    options = {"checkpoints": [checkpoints] * 2, "target": IN_PLACE}
    group = nursery.run(2, folder, *SMALL, *SHARDED, "--steps", "9", *arguments, **options)
    return [json.loads(group.output(rank)[-1]) for rank in range(2)]


def test_a_load_is_in_place(nursery, tmp_path, saved):
    for told in loads(nursery, tmp_path / "second", saved):
        assert told.pop("tensors") > 50
        assert told == {"error": "", "step": 8, "template in place": True, "parameters in place": True,
                        "state as before": False}  # fmt: skip


def test_a_load_that_fails_half_way_leaves_the_state_as_it_was(nursery, tmp_path, saved):
    """Half of each shard is zeros, and nothing verifies: DCP has read some tensors when it fails."""
    for shard in (saved / NEWEST).glob("*.distcp"):
        data = shard.read_bytes()
        shard.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    for told in loads(nursery, tmp_path / "second", saved, "--verify", "nothing"):
        assert "rank 0: " in told["error"] and told["step"] == 0
        assert told["state as before"] and told["parameters in place"]


@pytest.mark.parametrize("staging", ["copy", "reference"])
def test_what_is_saved_in_the_background_is_the_state_at_the_call_if_it_was_copied(nursery, tmp_path, staging):
    options = (*SMALL, "--strategy", "fsdp", "--format", "dcp-async", "--staging", staging, "--slow", "1")
    first = nursery.run(2, tmp_path / "first", *options, "--steps", "6")
    (committed,) = first.records("committed")
    trained = [record["step"] for record in first.records("step") if record["mono"] < committed["mono"]]
    assert 5 in trained, "the training did not go on while the checkpoint was written"
    second = resume(nursery, tmp_path / "second", tmp_path / "first" / "ck")
    assert second.wait() == [0, 0], second.output()
    differ = [name for name, digest in told(first, "saved", 4).items() if told(second, "loaded", 4)[name] != digest]
    assert bool(differ) == (staging == "reference"), differ


@pytest.mark.parametrize(("steps", "last"), [("9", 8), ("6", 6)], ids=["by the next save", "at the end"])
def test_a_save_that_fails_in_the_background_stops_all_ranks_and_harms_none_before(nursery, tmp_path, steps, last):
    options = (*SMALL, "--width", "64", "--strategy", "fsdp", "--format", "dcp-async")
    nursery.run(2, tmp_path / "first", *options, "--steps", "2", "--save_every", "2")
    folder = tmp_path / "first" / "ck"
    group = nursery.start(
        2, tmp_path / "second", *options, "--steps", steps, checkpoints=[folder] * 2, file_limit=200_000
    )
    assert group.wait() == [1, 1]
    for rank in range(2):
        (line,) = group.output(rank)
        assert "step-00000004.dcp: rank " in line and "File too large" in line
        assert max(group.losses(rank)) == last and not group.records("finished", rank)
    assert (folder / "latest").read_text() == "step-00000002.dcp\n"
    assert resume(nursery, tmp_path / "third", folder, "--width", "64").wait() == [0, 0]
