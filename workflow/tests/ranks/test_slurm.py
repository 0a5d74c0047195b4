"""Slurm as a launcher, for real: a cluster of the leg's own, jobs preempted, requeued, cancelled, and nothing left."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from launch import command_of, events, losses, run, script, wait_for
from takeback import evidence, pool_client, slurm
from takeback.checkers import attempts
from takeback.checkers.case import LegView
from takeback.leftovers import leftovers
from test_torchrun import LOOP

pytestmark = pytest.mark.skipif(slurm.unavailable() is not None, reason=str(slurm.unavailable()))


@pytest.fixture(autouse=True)
def warm(pool, monkeypatch):
    monkeypatch.setenv(pool_client.VARIABLE, pool)


@pytest.fixture(autouse=True)
def nothing_of_it_is_left():
    """No daemon, no folder, no job: also when a test fails."""
    yield
    assert left() == []


def left():
    """What clusters have left whose owner has ended; others may be at work here."""
    return [line for line in leftovers() if slurm.NAME in line]


def job(tmp_path, *kinds, steps=6, pause=0.01, deadline=240.0, **given):
    """A leg under Slurm whose attempts are struck in their turn: at step 3, at step 4, …"""
    faults = [
        {"id": str(number), "kind": kind, "ranks": "all", "point": "step", "step": 3 + number, "attempt": number}
        for number, kind in enumerate(kinds)
    ]
    text = LOOP.replace("{steps}", str(steps)).replace("{pause}", str(pause)).replace("{lost}", "pass")
    launcher = {"kind": "slurm", "with": {"max_restarts": 1, **given}}
    return script(tmp_path, text, 2, faults=tuple(faults), launcher=launcher, deadline=deadline)


def lives(leg, runs):
    return attempts.lives_of(LegView(evidence.read(runs, leg.id)))


@pytest.fixture(scope="module")
def twice(tmp_path_factory, pool):
    """On two nodes: preempted, then a node is lost, and another takes its place."""
    folder = tmp_path_factory.mktemp("twice")
    leg = job(folder, "slurm_preempt", "slurm_node_down", nproc=1, spare=1, max_restarts=2)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(pool_client.VARIABLE, pool)
        finished = run(leg, folder, timeout=290)
    assert finished.returncode == 0, finished.stderr
    return leg, folder


def test_a_job_that_was_taken_off_its_nodes_starts_again_under_its_own_number(twice):
    launched = events(*twice, "launched")
    assert launched.groupby("attempt").of_rank.apply(sorted).tolist() == [[0, 1]] * 3
    assert launched.of_pid.is_unique
    assert events(*twice, "agent_exited").state.tolist() == ["COMPLETED"]
    assert losses(*twice).step.max() == 6


def test_each_start_is_a_life_that_goes_on_from_the_newest_checkpoint(twice):
    found = lives(*twice)
    assert [[fault["kind"] for fault in life.spec["faults"]] for life in found] == [
        ["slurm_preempt"],
        ["slurm_node_down"],
        [],
    ]
    assert [max(event.step for event in life.restored.values()) for life in found] == [0, 2, 4]


def test_the_receipts_are_slurm_s_own_words(twice):
    went_on = events(*twice, "fault_went_on")
    says = sorted(seen["slurm"] for seen in [*events(*twice, "fault_fired").seen, *went_on.seen] if "slurm" in seen)
    assert [line.split()[0] for line in says] == ["preempted", "requeue"]
    assert "has been requeued to reclaim resources" in says[0]
    assert "due to failure of node n1" in says[1]


def test_a_node_that_is_lost_is_not_used_again(twice):
    launched = events(*twice, "launched")
    assert launched.groupby("attempt").of_agent.apply(sorted).tolist() == [[0, 1], [0, 1], [0, 2]]


def test_how_a_rank_ended_is_known_though_it_is_no_child_of_ours(twice):
    exits = events(*twice, "exited")
    assert set(exits[exits.by == "fault"].signal) == {signal.SIGTERM}
    assert set(exits.known) <= {"kernel", "agent"}
    assert exits[exits.attempt == 2].status.tolist() == [0, 0]


def test_a_job_that_is_cancelled_is_not_waited_for(tmp_path):
    leg = job(tmp_path, "slurm_preempt", preempt="cancel")
    assert run(leg, tmp_path, timeout=120).returncode == 0
    assert events(leg, tmp_path, "agent_exited").state.tolist() == ["PREEMPTED"]
    assert set(events(leg, tmp_path, "launched").attempt) == {0}
    assert events(leg, tmp_path, "hang_detected").empty


def test_a_requeue_that_never_comes_is_waited_for_until_the_deadline(tmp_path):
    leg = job(tmp_path, "slurm_node_down", nproc=1, deadline=40.0)  # two nodes, and no third
    assert run(leg, tmp_path, timeout=120).returncode == 0
    assert events(leg, tmp_path, "hang_detected").seconds.tolist() == [40.0]
    assert events(leg, tmp_path, "agent_exited").state.tolist() == ["PENDING"]


@pytest.mark.parametrize("whom", ["the job", "its supervisor"])
def test_daemons_and_ranks_end_with_whoever_asked_for_them(tmp_path, whom):
    leg = job(tmp_path, steps=100000)
    with subprocess.Popen(command_of(leg, tmp_path)) as client:
        records = tmp_path / leg.id / "records"
        (path,) = wait_for(lambda: [*records.glob("attempt0-rank0-*.jsonl")], 60)
        rank = psutil.Process(int(path.stem.rpartition("pid")[2]))
        if whom == "the job":
            client.kill()
        else:
            next(one for one in rank.parents() if daemon_below(one)).kill()
        assert client.wait(30) != 0
    wait_for(lambda: not rank.is_running(), 30)
    wait_for(lambda: left() == [], 30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_slurm_for_a_command_ends_with_whoever_asked_for_it_and_so_do_its_jobs(tmp_path, number):
    told = tmp_path / "told"
    command = ["srun", "sh", "-c", f"echo $$ > {told}; sleep 1000"]
    with subprocess.Popen([sys.executable, "-m", "takeback", "slurm", "--nodes", "1", "--", *command]) as asking:
        wait_for(lambda: told.exists() and told.read_text().strip(), 60)
        asking.send_signal(number)
        assert asking.wait(30) == -number
    wait_for(lambda: left() == [] and not psutil.pid_exists(int(told.read_text())), 30)


def test_a_slurm_for_a_command_has_its_status():
    words = ["--nodes", "2", "--", "srun", "-N2", "sh", "-c", "test $SLURM_NODEID = 0 || exit 5"]
    assert subprocess.run([sys.executable, "-m", "takeback", "slurm", *words], check=False).returncode == 5


def daemon_below(process):
    with suppress(psutil.Error):  # one has just ended
        return any("slurmctld" in child.name() for child in process.children())
    return False


def test_without_slurm_it_is_not_run_and_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "munged").exists()))
    monkeypatch.delenv(pool_client.VARIABLE)
    leg = job(tmp_path, "slurm_preempt")
    assert run(leg, tmp_path).returncode == 0
    (reason,) = events(leg, tmp_path, "not_run").reason
    assert "munged" in reason
    assert "install slurm-wlm and munge" in reason
