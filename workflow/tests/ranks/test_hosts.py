"""Ranks on several hosts, for real: namespaces with an sshd each, struck, cut off, not to be reached, and none left."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from away import running_hosts
from launch import events, fault, losses, run, script, wait_for
from takeback import evidence, leftovers, pool_client
from takeback.checkers import fault as checker
from takeback.checkers.case import LegView
from takeback.experiment import REFERENCE
from takeback.faults import Victim
from takeback.launchers import on_host, sshd
from takeback.launchers.process import is_stopped
from takeback.launchers.recorder import Recorder
from takeback.leg import Leg

pytestmark = pytest.mark.skipif(sshd.unavailable() is not None, reason=f"needs root and sshd: {sshd.unavailable()}")

HOSTS = {"kind": "hosts", "with": {"nproc": 1}}
STRANGE = "$(touch struck); `touch struck` '\" \\ {host}\n; touch struck"
# Ranks that need no torch, and not one another.
STEPS = """
import os
from takeback import probe
probe.restored(0)
for step in range(1, 7):
    probe.step(step, 1.0 / step, samples=[step])
print("done", flush=True)
probe.record("note", text={name: os.environ.get(name) for name in ("MASTER_ADDR", "LOCAL_RANK", "STRANGE")})
probe.finished(6)
"""
SLEEPS = "import time\nfrom takeback import probe\nprobe.restored(0)\ntime.sleep(600)\n"
WAITS = """
import time
from pathlib import Path
from takeback import probe
probe.restored(0)
while not Path("checkpoints/go").exists():
    time.sleep(0.01)
"""
# Two ranks with a connection between them: one comes by step 3 when it may, the other ends as soon as it sees its end.
PEERS = """
import os, socket, sys, time
from pathlib import Path
from takeback import probe
probe.restored(0)
port = Path("checkpoints/port")
if os.environ["RANK"] == "0":
    listening = socket.create_server((os.environ["MASTER_ADDR"], 0))
    port.with_name("new").write_text(str(listening.getsockname()[1]))
    port.with_name("new").rename(port)
    other, _ = listening.accept()
else:
    while not port.exists():
        time.sleep(0.01)
    other = socket.create_connection((os.environ["MASTER_ADDR"], int(port.read_text())))
port.with_name("met" + os.environ["RANK"]).touch()
if os.environ["RANK"] == "{late}":
    other.recv(1)
    sys.exit(1)
while not Path("checkpoints/go").exists():
    time.sleep(0.01)
for step in range(1, 4):
    probe.step(step, 1.0 / step, samples=[step])
time.sleep(600)
"""


@pytest.fixture
def warm(pool, monkeypatch):
    monkeypatch.setenv(pool_client.VARIABLE, pool)


@pytest.fixture(scope="module")
def away(tmp_path_factory):
    """Two hosts, which don't see the folder ``hidden``."""
    hidden = tmp_path_factory.mktemp("hidden")
    with running_hosts(2, tmp_path_factory.mktemp("file") / "hosts.yaml", hidden) as hosts:
        hosts.hidden = hidden
        yield hosts


def why_not(leg, runs):
    return events(leg, runs, "not_run").reason.item()


@pytest.fixture(scope="module")
def struck(tmp_path_factory, pool):
    """Rank 1 of 3, on hosts with two ranks each, is killed when it has reported step 3."""
    folder = tmp_path_factory.mktemp("struck")
    launcher = {"kind": "hosts", "with": {"nproc": 2}, "environment": {"STRANGE": STRANGE}}
    leg = script(folder, STEPS, 3, faults=(fault(3, [2]),), launcher=launcher, deadline=60.0)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(pool_client.VARIABLE, pool)
        finished = run(leg, folder)
    assert finished.returncode == 0, finished.stderr
    return leg, folder


def test_ranks_start_on_every_host_and_meet_at_the_address_of_the_first(struck):
    launched = events(*struck, "launched").sort_values("of_rank")
    assert launched.host.tolist() == ["10.77.0.11", "10.77.0.11", "10.77.0.12"]
    assert launched.of_agent.tolist() == [0, 0, 1]
    assert events(*struck, "agent_launched").name.tolist() == ["10.77.0.11", "10.77.0.12"]
    told = dict(zip(events(*struck, "note")["rank"], events(*struck, "note").text, strict=True))
    assert {rank: (text["MASTER_ADDR"], text["LOCAL_RANK"]) for rank, text in told.items()} == {
        0: ("10.77.0.11", "0"),
        1: ("10.77.0.11", "1"),
    }


def test_a_value_of_the_yaml_reaches_the_ranks_as_it_is_and_no_shell(struck):
    leg, folder = struck
    assert [text["STRANGE"] for text in events(leg, folder, "note").text] == [STRANGE, STRANGE]
    assert not list(folder.rglob("struck"))
    assert not (Path.home() / "struck").exists()


def test_a_kill_on_a_named_host_leaves_its_receipt(struck):
    fired = events(*struck, "fault_fired")
    assert [victim["rank"] for victim in fired.victims.item()] == [2]
    exits = events(*struck, "exited").set_index("of_rank")
    assert (exits.signal[2], exits.by[2]) == (signal.SIGKILL, "fault")
    assert exits.status[[0, 1]].tolist() == [0, 0]
    assert losses(*struck).groupby("rank").step.max().to_dict() == {0: 6, 1: 6, 2: 3}
    assert events(*struck, "agent_exited").status.tolist() == [0, 0]


def test_output_of_the_ranks_is_collected(struck):
    leg, folder = struck
    assert (folder / leg.id / "stdout" / "rank-1.txt").read_text() == "done\n"


def test_nothing_of_the_hosts_is_left(struck):
    leg, folder = struck
    names = {path.name for path in (folder / leg.id).iterdir()}
    assert "hosts" not in names
    assert not [line for line in leftovers.leftovers() if "takeback-ssh" in line and "sshd" in line]


def reference(launcher, **more):
    settings = {"steps": 6, "samples": 64, "batch": 1, "width": 16, "timeout": 60, **more.pop("settings", {})}
    store = {"store": more.pop("store")} if "store" in more else {}
    return Leg({"command": REFERENCE, "settings": settings, **store}, "gloo", 2, launcher=launcher, **more)


def test_the_bits_are_those_of_one_machine(warm, tmp_path):
    here, there = reference("local"), reference(HOSTS)
    for leg in (here, there):
        finished = run(leg, tmp_path)
        assert finished.returncode == 0, finished.stderr
    bits = [losses(leg, tmp_path).sort_values(["rank", "step"]).loss_bits.tolist() for leg in (here, there)]
    assert bits[0] == bits[1]
    assert len(bits[0]) == 12
    states = [pd.read_parquet(tmp_path / leg.id / "digests.parquet") for leg in (here, there)]
    keys = ["rank", "moment", "step", "order"]
    first, second = (state.sort_values(keys).digest.tolist() for state in states)
    assert first == second


@pytest.mark.parametrize(("kind", "ends"), [("host_gone", "fault"), ("network_cut", "itself")])
def test_a_host_that_is_cut_off_tells_nobody_and_its_evidence_is_there(warm, tmp_path, kind, ends):
    """Rank 1 is alone on its host, and when all is over a checkpoint is damaged."""
    damage = {**fault(None, point="end"), "id": "1", "kind": "corrupt", "with": {"how": "flip_bit"}}
    leg = reference(HOSTS, faults=({**fault(4), "kind": kind}, damage), settings={"save_every": 2, "timeout": 3})
    finished = run(leg, tmp_path)
    assert finished.returncode == 0, finished.stderr
    told = pd.concat([events(leg, tmp_path, when) for when in ("fault_fired", "fault_went_on")])
    seen = {}
    for one in told[told.action == kind].seen:
        seen |= one
    assert seen == {"answered_before": True, "link": "down", "answers": False}
    assert sorted(told.action.unique()) == sorted([kind, "corrupt"])
    assert events(leg, tmp_path, "exited").set_index("of_rank").by.to_dict() == {0: "itself", 1: ends}
    errors = events(leg, tmp_path, "error")
    assert "Timed out" in errors[errors["rank"] == 0].text.item()
    assert losses(leg, tmp_path).groupby("rank").step.max().to_dict() == {0: 4, 1: 4}


def test_each_fault_of_a_process_strikes_on_a_host(warm, tmp_path):
    kinds = {"exit": (7, None), "exception": (1, None), "segfault": (None, signal.SIGSEGV),
             "sigterm": (None, signal.SIGTERM), "pause": (0, None)}  # fmt: skip
    faults = [{**fault(3, [rank]), "id": kind, "kind": kind} for rank, kind in enumerate(kinds)]
    launcher = {"kind": "hosts", "with": {"nproc": 3}}
    leg = script(tmp_path, STEPS, len(kinds), faults=tuple(faults), launcher=launcher, deadline=62.0)
    assert run(leg, tmp_path).returncode == 0
    exits = events(leg, tmp_path, "exited").set_index("of_rank").sort_index()
    ended = [(*(None if pd.isna(n) else int(n) for n in row),) for row in exits[["status", "signal"]].to_numpy()]
    assert dict(zip(kinds, ended, strict=True)) == kinds
    assert set(events(leg, tmp_path, "fault_fired").fault) == set(kinds)


def test_stopped_ranks_on_all_hosts_are_ended_when_nothing_can_happen_any_more(warm, tmp_path):
    stopped = {**fault(3, "all"), "kind": "sigstop"}
    leg = script(tmp_path, STEPS, faults=(stopped,), launcher=HOSTS, deadline=100.0)
    began = time.monotonic()
    assert run(leg, tmp_path).returncode == 0
    assert time.monotonic() - began < 60
    assert sorted(events(leg, tmp_path, "exited").by) == ["supervisor", "supervisor"]
    victims = [victim["rank"] for victims in events(leg, tmp_path, "fault_fired").victims for victim in victims]
    assert sorted(victims) == [0, 1]


def test_a_host_that_cannot_be_reached_is_a_reason_not_to_run_and_no_error(away, tmp_path):
    leg = script(tmp_path, STEPS, launcher=HOSTS)
    began = time.monotonic()
    assert away.run(leg, tmp_path, hosts=["10.77.0.11", "10.77.0.99"]).returncode == 0
    assert time.monotonic() - began < 90
    assert why_not(leg, tmp_path).startswith("host 10.77.0.99: ssh: connect to host 10.77.0.99 port 22: ")


def test_a_host_with_another_key_is_not_trusted(away, tmp_path):
    leg = script(tmp_path, STEPS, launcher=HOSTS)
    known = Path(away.keys, "known_hosts").read_text().split()
    known[2], known[6] = known[6], known[2]  # name, kind, key, remark
    other = tmp_path / "known_hosts"
    other.write_text(f"{' '.join(known[:4])}\n{' '.join(known[4:])}\n")
    command = away.place["command"].replace(f"{away.keys}/known_hosts", str(other))
    assert away.run(leg, tmp_path, command=command).returncode == 0
    assert re.fullmatch(r"host 10\.77\.0\.1[12]: Host key verification failed\.", why_not(leg, tmp_path))
    assert events(leg, tmp_path, "launched").empty


def test_what_is_no_host_of_ours_is_a_reason_not_to_run(away, tmp_path):
    """A shell that greets, say."""
    leg = script(tmp_path, STEPS, world=1, launcher=HOSTS)
    assert away.run(leg, tmp_path, hosts=["h"], command="echo Welcome to {host}:").returncode == 0
    assert why_not(leg, tmp_path).startswith("host h: what it sent is no message of ours: ")


def test_a_host_with_other_sources_is_a_reason_not_to_run(away, tmp_path):
    leg = script(tmp_path, STEPS, launcher=HOSTS)
    package = Path(on_host.__file__).parents[1]
    for name in ("takeback", "schemas"):
        shutil.copytree(package.parent / name, tmp_path / "workflow" / name)
    with (tmp_path / "workflow/takeback/faults/sigkill.py").open("a") as file:
        file.write("# older\n")
    assert away.run(leg, tmp_path, folder=str(tmp_path)).returncode == 0
    reason = why_not(leg, tmp_path)
    assert reason.startswith("host 10.77.0.11 is not like this machine: takeback's nemesis sources: ")


def test_a_host_that_does_not_see_the_checkpoints_is_a_reason_not_to_run(away, tmp_path):
    leg = script(tmp_path, STEPS, launcher=HOSTS)
    assert away.run(leg, away.hidden).returncode == 0
    assert "does not see" in why_not(leg, away.hidden)


AHEAD = 1e6  # s


def test_evidence_is_collected_without_a_shared_folder_and_by_one_clock(away, tmp_path):
    """The hosts are as those of another machine: their monotonic clock is another, and they don't see the results."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec unshare --time --fork --monotonic {AHEAD:.0f} {sys.executable} "$@"\n')
    python.chmod(0o755)
    leg = script(tmp_path, STEPS, faults=(fault(3),), launcher=HOSTS, deadline=61.0)
    finished = away.run(leg, away.hidden, shared=False, python=str(python))
    assert finished.returncode == 0, finished.stderr
    found = events(leg, away.hidden)
    own = found[found.kind.isin(["agent_launched", "agent_exited"])].monotonic
    others = found[found.kind.isin(["launched", "held", "fault_fired", "exited"])]
    assert len(others) == 6
    assert others.monotonic.between(own.min(), own.max()).all()
    order = found[found.kind.isin(["held", "fault_due", "fault_armed", "fault_fired"])].kind.tolist()
    assert order == ["held", "fault_due", "fault_armed", "fault_fired"]


@pytest.mark.skipif(importlib.util.find_spec("swift") is None, reason="needs swift")
def test_an_object_store_takes_the_place_of_a_shared_folder(away, tmp_path):
    first = reference(HOSTS, faults=(fault(4),), settings={"save_every": 2}, store="object")
    second = reference(HOSTS, parent=first, settings={"save_every": 2}, store="object")
    for leg in (first, second):
        finished = away.run(leg, away.hidden)
        assert finished.returncode == 0, finished.stderr
    assert events(second, away.hidden, "restored").step.tolist() == [2, 2]
    assert losses(second, away.hidden).groupby("rank").step.agg(["min", "max"]).to_numpy().tolist() == [[3, 6]] * 2


def ranks_below(pid):
    """Ranks on the hosts that a process holds: they work in a folder that their supervisor there has made."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if Path(process.cwd()).name.startswith("takeback-host-"):
                found.append(process)
    return found


@contextlib.contextmanager
def running(away, leg, runs):
    """A leg whose two ranks are there, started by a process of its own, which is killed at the end of the block."""
    away.write()
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(away.command(leg, runs), env=away.environment, **silent) as asked:
        try:
            wait_for(lambda: len(ranks_below(away.pid)) == 2, 60)
            yield asked
        finally:
            asked.kill()


def gone(processes):
    """Whether the processes end; those that don't, because the guard is broken, are ended here."""
    _, alive = psutil.wait_procs(processes, timeout=15)
    for process in alive:
        process.kill()
    return not alive


def test_when_the_supervisor_is_killed_nothing_lives_on_the_hosts(away, tmp_path):
    leg = script(tmp_path, SLEEPS, launcher=HOSTS)
    with running(away, leg, tmp_path) as asked:
        there = ranks_below(away.pid)
        folders = [Path(rank.cwd()) for rank in there]
        there += [rank.parent() for rank in there]
        supervisors = [psutil.Process(asked.pid), *psutil.Process(asked.pid).children()]
        for process in supervisors:
            process.suspend()  # so that neither can clean up after the other
        for process in supervisors:
            process.kill()
    assert gone(there)
    assert not any(folder.exists() for folder in folders)


def test_a_host_that_is_lost_on_the_way_is_named_and_the_others_go_on(away, tmp_path):
    leg = script(tmp_path, WAITS, launcher=HOSTS)
    with running(away, leg, tmp_path) as asked:
        there = ranks_below(away.pid)
        clients = [one for one in psutil.Process(asked.pid).children(recursive=True) if one.name() == "ssh"]
        next(client for client in clients if "10.77.0.12" in client.cmdline()).kill()
        wait_for(lambda: len(ranks_below(away.pid)) == 1, 30)
        (tmp_path / leg.id / "checkpoints/go").touch()
        assert asked.wait(30) == 0
    assert gone(there)
    lost = events(leg, tmp_path, "error")
    assert (lost.type.item(), lost.text.item()[:17]) == ("LostHost", "host 10.77.0.12: ")
    assert events(leg, tmp_path, "exited").set_index("of_rank").status.to_dict() == {0: 0}


@pytest.mark.parametrize("late", [0, 1])
def test_where_one_host_hears_late_of_a_kill_its_victim_has_not_seen_the_end_of_the_other(away, tmp_path, late):
    leg = script(tmp_path, PEERS.format(late=late), faults=(fault(3, "all"),), launcher=HOSTS)
    with running(away, leg, tmp_path) as asked:
        folder = tmp_path / leg.id
        wait_for(lambda: all((folder / f"checkpoints/met{rank}").exists() for rank in (0, 1)), 30)
        own = folder / f"records/host-{late}.jsonl"
        launched = wait_for(lambda: own.exists() and own.read_text(), 30)
        host = psutil.Process(json.loads(launched.splitlines()[0])["pid"])
        host.suspend()
        (folder / "checkpoints/go").touch()
        time.sleep(1.0)
        host.resume()
        assert asked.wait(30) == 0
    exits = events(leg, tmp_path, "exited").set_index("of_rank").sort_index()
    assert exits[["signal", "by"]].to_numpy().tolist() == [[signal.SIGKILL, "fault"]] * 2
    assert checker._struck(LegView(evidence.read(tmp_path, leg.id))).sentence == ""
    told = events(leg, tmp_path).query("kind in ['fault_due', 'victims_stopped', 'fault_fired']").kind.tolist()
    assert told == ["fault_due", "victims_stopped", "fault_fired", "fault_fired"]


def test_a_victim_that_is_stopped_until_its_strike_is_not_let_go_for_a_fault_that_it_came_too_late_for(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as victim:
        alive = {1: Victim(1, victim.pid, os.pidfd_open(victim.pid))}
        recorder = Recorder(tmp_path / "records", "host-0")
        injector = on_host.HostInjector([fault(3, [1])], tmp_path, 2, {}, recorder, 0)
        injector.loose.add(1)
        try:
            injector.stop("0", alive)
            injector.look(alive)
            assert is_stopped(victim.pid)
            injector.strike("0", alive)
            assert victim.wait(10) == -signal.SIGKILL
        finally:
            victim.kill()


def test_a_host_that_hears_nothing_ends_by_itself():
    """As where its link is cut for good: stdin does not end."""
    order = {"spec": {}, "node": 0, "silence": 1.0, "shared": False, "folder": "/"}
    words = [sys.executable, "-m", "takeback.launchers.on_host"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as host:
        try:
            print(json.dumps({"request": order}), file=host.stdin, flush=True)
            assert "hello" in json.loads(host.stdout.readline())
            assert host.wait(30) == 1
            assert "no word from whoever asked" in host.stderr.read()
        finally:
            host.kill()
