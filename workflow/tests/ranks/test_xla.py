"""torch_xla on virtual devices of this machine: worlds are counted, and a run has the same bits however it starts."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from launch import ROOT, events, fault, losses, run
from takeback import environments, evidence, pool_client
from takeback.leg import Leg
from warm import running_pool

NAME = "xla"
needs_xla = pytest.mark.skipif(
    not environments.is_there(NAME), reason="needs the environment xla: python -m takeback environment xla"
)
TRAIN = ["python", "-m", "takeback.backends.xla.train"]
WORDS = [*TRAIN, "--checkpoints", "{checkpoints}", "--backend", "{backend}", "--world", "{world}"]


def leg_of(world, backend="xla", parent=None, faults=(), **settings):
    return Leg({"command": WORDS, "settings": {"steps": 6, **settings}}, backend, world, faults=faults, parent=parent)


def digests(leg, runs):
    found = pd.read_parquet(runs / leg.id / "digests.parquet").drop(columns="attempt")
    return found.sort_values(["rank", "moment", "step", "order"], ignore_index=True)


@pytest.fixture(scope="module")
def pool():
    with running_pool(environment=NAME) as name:
        yield name


def by_hand(tmp_path, *words, **environment):
    """The trainer, started without the suite, in the environment; what it told and said."""
    for name in ("records", "checkpoints"):
        (tmp_path / name).mkdir()
    words = [str(environments.interpreter(NAME)), *TRAIN[1:], "--checkpoints", str(tmp_path / "checkpoints"), *words]
    around = {**environments.variables(NAME), "TAKEBACK_RECORDS": str(tmp_path / "records"), **environment}
    process = subprocess.run(words, env=around, capture_output=True, text=True, timeout=200, check=False)
    (records,) = (tmp_path / "records").iterdir()
    return process, [json.loads(line) for line in records.read_text().splitlines()]


@needs_xla
def test_under_torchrun_each_process_is_alone_and_a_run_says_so():
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "silent_world.py"]
    around = {**environments.variables(NAME), "PJRT_DEVICE": "CPU", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [str(environments.interpreter(NAME)), *words],
        env=around, cwd=ROOT / "workflow/tests/ranks", capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    expected = (
        "rank 0 of 1, sum 5.0: a world of 2 was asked for; this process is in one of 1, and a sum of ones over it"
    )
    assert process.stdout.count(expected) == 2, process.stdout


@needs_xla
def test_a_run_in_the_pool_has_the_bits_of_a_cold_one(pool, tmp_path, monkeypatch):
    leg = leg_of(2)
    assert run(leg, tmp_path / "cold", 300).returncode == 0
    monkeypatch.setenv(pool_client.variable(NAME), pool)
    assert run(leg, tmp_path / "warm", 300).returncode == 0
    cold, warm = (losses(leg, tmp_path / start) for start in ("cold", "warm"))
    assert len(warm) == 6
    pd.testing.assert_frame_equal(cold, warm, check_exact=True)
    pd.testing.assert_frame_equal(*(digests(leg, tmp_path / start) for start in ("cold", "warm")))


@needs_xla
def test_a_run_tells_mesh_bridge_and_compilation(pool, tmp_path, monkeypatch):
    monkeypatch.setenv(pool_client.variable(NAME), pool)
    leg = leg_of(4)
    assert run(leg, tmp_path, 300).returncode == 0
    assert events(leg, tmp_path, "group_formed").world.tolist() == [4], "one process, a mesh of four"
    facts = evidence.read_json(tmp_path / leg.id / "provenance.json")
    bridge = facts["trainer"]["facts"]["bridge"]
    assert (bridge["devices"], bridge["mesh"], bridge["processes"]) == (4, [4], 1)
    assert facts["fingerprint"]["bridge"] == "xla, torch_xla 2.9.0, PJRT CPU"
    assert facts["fingerprint"]["torch"].startswith("2.9.0")
    assert "XLA_FLAGS" in facts["flags"]
    notes = events(leg, tmp_path, "note").set_index("step").seconds
    compiled = {step: took["compiled_since_start"] for step, took in notes.items()}
    assert compiled[1] > 0
    assert compiled[6] == compiled[1], "every step has the graph of the first"
    assert notes[2]["step"] < notes[1]["step"], "and is told apart from its compilation"


@needs_xla
def test_a_killed_rank_process_is_resumed_on_another_number_of_them(pool, tmp_path, monkeypatch):
    """Processes with a device each: real victims, and a sum in fixed order on the host."""
    monkeypatch.setenv(pool_client.variable(NAME), pool)
    keyed = {"rng": "keyed", "save_every": 2}
    reference = leg_of(2, "xla_processes", **keyed)
    killed = leg_of(2, "xla_processes", faults=(fault(3),), **keyed)
    resumed = leg_of(1, "xla_processes", parent=killed, **keyed)
    for leg in (reference, killed, resumed):
        assert run(leg, tmp_path, 300).returncode == 0
    assert events(killed, tmp_path, "exited").signal.tolist().count(9) == 1
    assert events(resumed, tmp_path, "restored").step.tolist() == [2]
    whole = losses(reference, tmp_path)
    expected = whole[(whole["rank"] == 0) & (whole.step > 2)].loss_bits.tolist()
    assert losses(resumed, tmp_path).loss_bits.tolist() == expected


@needs_xla
@pytest.mark.parametrize(("way", "mark"), [("dcp", ".metadata"), ("manager", ".manager_metadata")])
def test_a_checkpoint_whose_mark_is_not_whole_is_not_taken_for_the_newest(pool, tmp_path, monkeypatch, way, mark):
    monkeypatch.setenv(pool_client.variable(NAME), pool)
    killed = leg_of(1, faults=(fault(5),), saves=way, save_every=2)
    assert run(killed, tmp_path, 300).returncode == 0
    newest = tmp_path / killed.id / "checkpoints/4"
    newest.chmod(0o755)
    if way == "dcp":
        (newest / mark).rename(newest / f"{mark}.tmp")  # what DCP writes first
    else:
        (newest / mark).chmod(0o644)
        os.truncate(newest / mark, 5)
    resumed = leg_of(1, parent=killed, saves=way, save_every=2)
    assert run(resumed, tmp_path, 300).returncode == 0
    assert events(resumed, tmp_path, "restored").step.tolist() == [2]


@needs_xla
@pytest.mark.parametrize(
    ("words", "around", "reason"),
    [
        (["--world", "4"], {"CPU_NUM_DEVICES": "2"}, "4 devices were asked for, PJRT has 2 of kind CPU"),
        (["--world", "1"], {"PJRT_DEVICE": "CUDA"}, "no PJRT device of kind CUDA: No PjRtPlugin registered for: CUDA"),
        (["--backend", "xla_processes"], {"PJRT_DEVICE": "CUDA"}, "no PJRT device of kind CUDA: No PjRtPlugin"),
    ],
    ids=["more than there are", "no such device", "no such device of a process"],
)
def test_devices_that_are_not_there_are_a_reason_and_no_run(tmp_path, words, around, reason):
    process, told = by_hand(tmp_path, *words, **around)
    (found,) = [record["reason"] for record in told if record["kind"] == "not_run"]
    assert found.startswith(reason)
    assert process.stderr.splitlines()[-1] == f"not run: {found}"
    assert not [record for record in told if record["kind"] in ("step", "error")]


@pytest.mark.parametrize("named", [False, True], ids=["no environment", "a wrong torch beside it"])
def test_without_its_environment_a_leg_says_why_it_was_not_run(tmp_path, monkeypatch, named):
    """The base interpreter, which has another torch and no bridge, seals the leg."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(environments.variable(NAME), raising=False)
    if named:
        monkeypatch.setenv(environments.variable(NAME), sys.executable)
    leg = leg_of(1)
    assert run(leg, tmp_path).returncode == 0
    (reason,) = events(leg, tmp_path, "not_run").reason
    expected = f"{sys.executable}: has no torch_xla;" if named else "no xla environment here; make it:"
    assert reason.startswith(expected)
    assert os.environ.get(environments.VARIABLE) is None
