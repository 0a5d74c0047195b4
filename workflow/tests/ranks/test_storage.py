"""Faults of storage for real: what they do to the files, the proof that they did it, and nothing that stays."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from types import SimpleNamespace

import pytest
from launch import command_of, events, run, script
from takeback import evidence, pool_client, storage
from takeback.checkers import fault
from takeback.checkers.case import LegView
from takeback.faults import Injection, corrupt

SAVES = """
import sys
from pathlib import Path
from takeback import probe
from takeback.trainers import files

folder = Path(sys.argv[1])
probe.restored(0)
for step in (1, 2):
    probe.step(step, 1.0 / step)
    data = str(step).encode() * 100_000
    try:
        with files.create(folder / f"step-{step:08d}.pt", "WAY") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            probe.point("save.write", step)
            file.write(data[len(data) // 2 :])
        with files.create(folder / "latest", "WAY") as file:
            file.write(f"step-{step:08d}.pt".encode())
    except OSError as error:
        sys.exit(str(error))
    probe.saved(step)
"""
WHOLE = {"step-00000001.pt": b"1" * 100_000, "step-00000002.pt": b"2" * 100_000, "latest": b"step-00000002.pt"}
BEFORE = {"step-00000001.pt": b"1" * 100_000, "latest": b"step-00000001.pt"}


@pytest.fixture(autouse=True)
def warm(pool, monkeypatch):
    monkeypatch.setenv(pool_client.VARIABLE, pool)


@pytest.fixture(autouse=True)
def needs(request):
    """Skip where the machine has no such disk."""
    if "corrupt" not in request.node.name and (reason := storage.no_disk()):
        pytest.skip(f"{reason} (root)")


def struck(tmp_path, kind, point, step=2, way="whole", **given):
    """The files that a run leaves which a fault has struck, its receipt, and what the judge says of the receipt."""
    planned = {"id": "0", "kind": kind, "ranks": "all", "point": point, "step": step, "attempt": 0, "with": given}
    leg = script(tmp_path, SAVES.replace("WAY", way), world=1, faults=(planned,))
    finished = run(leg, tmp_path)
    assert finished.returncode == 0, finished.stderr
    left = {path.name: path.read_bytes() for path in (tmp_path / leg.id / "checkpoints").iterdir()}
    case = SimpleNamespace(killed=LegView(evidence.read(tmp_path, leg.id)))
    assert [path.name for path in (tmp_path / leg.id).glob("*.img")] == []
    return left, events(leg, tmp_path, "fault_fired").seen.item(), fault.struck(case), tmp_path / leg.id


def test_on_a_full_disk_a_part_of_a_write_fits_and_what_was_there_stays(tmp_path):
    left, seen, found, folder = struck(tmp_path, "disk_full", "save.write", free=8192)
    assert found.verdict is None, found.sentence
    assert seen == {"free": 8192, "errno": "ENOSPC"}
    assert left == BEFORE
    assert "No space left on device" in (folder / "stdout/rank-0.txt").read_text()


def test_on_a_failing_disk_a_write_is_an_error_and_what_was_synced_stays(tmp_path):
    left, seen, found, folder = struck(tmp_path, "write_error", "save.write")
    assert found.verdict is None, found.sentence
    assert seen == {"errno": "EIO"}
    assert left.items() >= BEFORE.items()
    assert "Input/output error" in (folder / "stdout/rank-0.txt").read_text()


def test_after_a_power_loss_what_was_synced_is_there(tmp_path):
    left, seen, found, _ = struck(tmp_path, "power_loss", "saved")
    assert found.verdict is None, found.sentence
    assert seen["unclean"]
    assert left == WHOLE


def test_after_a_power_loss_what_was_in_the_page_cache_alone_is_gone(tmp_path):
    left, seen, found, _ = struck(tmp_path, "power_loss", "saved", way="rename")
    assert found.verdict is None, found.sentence
    assert seen["in_the_page_cache"] == {name: len(data) for name, data in WHOLE.items()}
    assert left == {}


def test_after_a_power_loss_names_that_the_journal_had_committed_have_no_content(tmp_path):
    left, _, _, _ = struck(tmp_path, "power_loss", "saved", way="rename", journal="committed")
    assert left == {"step-00000001.pt": b"", "step-00000002.pt": b"", "latest": b"step-00000002.pt"}


LIBRARY = """
import sys, torch
from pathlib import Path
from takeback import probe
from torch.distributed import checkpoint

folder, state = Path(sys.argv[1]), {"weights": torch.arange(100_000.0)}
probe.restored(0)
for step in (1, 2):
    probe.step(step, 1.0 / step)
    WRITE
    probe.saved(step)
"""
DCP = """writer = checkpoint.FileSystemWriter(folder / f"{step}", sync_files=SYNC)
    checkpoint.save(state, storage_writer=writer, no_dist=True)"""


@pytest.mark.parametrize(
    ("write", "has_content"),
    [
        ('torch.save(state, folder / f"{step}.pt")', {"1.pt": False, "2.pt": False}),
        (DCP.replace("SYNC", "False"), {"__0_0.distcp": False, ".metadata": False}),
        # The fsync of the metadata comes before Python's buffer is flushed (torch 2.13, filesystem.py, finish).
        (DCP.replace("SYNC", "True"), {"__0_0.distcp": True, ".metadata": False}),
    ],
    ids=["torch.save", "DCP, sync_files=False", "DCP, sync_files=True"],
)
def test_none_of_the_writers_of_torch_survives_a_power_loss(tmp_path, write, has_content):
    planned = {"id": "0", "kind": "power_loss", "ranks": "all", "point": "saved", "step": 2, "attempt": 0}
    planned["with"] = {"journal": "committed"}
    leg = script(tmp_path, LIBRARY.replace("WRITE", write), 1, faults=(planned,))
    assert run(leg, tmp_path).returncode == 0
    checkpoints = tmp_path / leg.id / "checkpoints"
    assert {path.name: path.stat().st_size > 0 for path in checkpoints.rglob("*") if path.is_file()} == has_content


@pytest.mark.parametrize(
    ("how", "file", "changed"),
    [
        ("flip_bit", "newest", {"step-00000002.pt": b"2" * 50_000 + b"3" + b"2" * 49_999}),
        ("truncate", "newest", {"step-00000002.pt": b"2" * 50_000}),
        ("empty", "previous", {"step-00000001.pt": b""}),
        ("torn", "newest", {"step-00000002.pt": b"2" * 50_000 + bytes(50_000)}),
        ("missing", "newest", {"step-00000002.pt": None}),
        ("missing", "pointer", {"latest": None}),
        ("stale", "previous", {"latest": b"step-00000001.pt\n"}),
        ("incomplete", "newest", {"step-00000003.pt": b"2" * 50_000, "latest": b"step-00000003.pt\n"}),
    ],
)
def test_corrupt_changes_what_it_says_and_nothing_else(tmp_path, how, file, changed):
    left, seen, found, _ = struck(tmp_path, "corrupt", "end", how=how, file=file)
    assert found.verdict is None, found.sentence
    assert left == {name: data for name, data in {**WHOLE, **changed}.items() if data is not None}
    assert seen["files"] == sorted(changed)
    assert seen["destroyed"] == [int(name[5:13]) for name in changed if name in WHOLE and name != "latest"]


@pytest.mark.parametrize(
    ("how", "part", "file", "content"),
    [
        ("missing", "shard", "__1_0.distcp", None),
        ("flip_bit", "metadata", ".metadata", b"m5"),
        ("older", "shard", "__1_0.distcp", b"s2"),
        ("older", "manifest", "manifest.json", b"j2"),
    ],
)
def test_corrupt_damages_one_file_of_a_directory_and_counts_its_checkpoint_as_destroyed(
    tmp_path, how, part, file, content
):
    for step in (2, 4):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}.dcp"
        folder.mkdir(parents=True)
        for name, first in {"__0_0.distcp": "r", "__1_0.distcp": "s", ".metadata": "m", "manifest.json": "j"}.items():
            (folder / name).write_text(f"{first}{step}")
    injection = Injection({"kind": "corrupt", "with": {"how": how, "part": part}}, [], tmp_path, None, [])
    corrupt.strike(injection)
    assert injection.seen == {"changed": True, "files": [f"step-00000004.dcp/{file}"], "destroyed": [4]}
    damaged = tmp_path / "checkpoints/step-00000004.dcp" / file
    assert (damaged.read_bytes() if damaged.exists() else None) == content


def test_corrupt_that_finds_no_file_has_not_struck(tmp_path):
    planned = {"id": "0", "kind": "corrupt", "ranks": "all", "point": "end", "step": 1, "attempt": 0}
    leg = script(tmp_path, "from takeback import probe\nprobe.restored(0)\nprobe.step(1, 1.0)\n", 1, faults=(planned,))
    assert run(leg, tmp_path).returncode == 0
    found = fault.struck(SimpleNamespace(killed=LegView(evidence.read(tmp_path, leg.id))))
    assert (found.verdict, found.sentence) == (
        "invalid",
        "the fault never struck: after corrupt changed was False, not True",
    )


def loops():
    """Files that loop devices hold."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # it has just been let go
            found.append(path.read_text().strip())
    return found


def test_a_supervisor_that_is_killed_leaves_no_mount_and_no_loop_device(tmp_path):
    planned = {"id": "0", "kind": "write_error", "ranks": "all", "point": "never", "step": 2, "attempt": 0}
    leg = script(tmp_path, "import signal\nsignal.pause()\n", 1, faults=(planned,))
    image, records = str(tmp_path / leg.id / "disk.img"), tmp_path / leg.id / "records/supervisor.jsonl"
    client = Popen(command_of(leg, tmp_path), stderr=DEVNULL)
    until(lambda: records.exists() and records.read_bytes().endswith(b"\n"))
    supervisor = json.loads(records.read_text().splitlines()[0])["pid"]
    try:
        assert image in loops()
        assert str(tmp_path) not in Path("/proc/self/mounts").read_text(), "the mount is seen outside"
    finally:
        os.kill(supervisor, signal.SIGKILL)
    assert client.wait() != 0
    until(lambda: image not in loops())


def until(what, seconds=60):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)
