"""Faults that lose a rank, for real: memory, network, processes. What they do, their proofs, and nothing left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from launch import command_of, events, run, script, wait_for
from takeback import cgroup, evidence, leftovers, network, pool_client
from takeback.checkers import fault as receipts
from takeback.checkers.case import LegView

LOOP = """
import time
from takeback import probe
probe.restored(0)
probe.step(1, 1.0)
time.sleep({seconds})  # a rank that is told to end by nobody does so by itself
"""
KINDS = ("sigkill", "sigterm", "sigstop", "pause", "exit", "exception", "segfault", "oom", "network_cut", "host_gone")
WITH = {"sigterm": {"grace": 0.1}, "pause": {"seconds": 0.1}}
LACKS = {"oom": cgroup.unavailable(), "network_cut": network.unavailable(), "host_gone": network.unavailable()}


def planned(kind, ranks="last"):
    given = {"with": WITH[kind]} if kind in WITH else {}
    return {"id": "0", "kind": kind, "ranks": ranks, "point": "step", "step": 1, "attempt": 0, **given}


def skip_without(kind):
    if LACKS.get(kind):
        pytest.skip(f"{kind} needs root: {LACKS[kind]}")


def leg_of(tmp_path, kind, text=None, **more):
    # SIGTERM and SIGKILL must find their victim; of the others nobody waits for the end.
    text = text or LOOP.format(seconds=60 if kind in ("sigterm", "sigkill", "host_gone") else 0)
    return script(tmp_path, text, faults=(planned(kind),), deadline=60.0, notice=1.0, **more)


def verdict(leg, runs):
    """What the checker of receipts says of the fault."""
    return receipts.struck(SimpleNamespace(killed=LegView(evidence.read(runs, leg.id)))).sentence


@pytest.fixture
def warm(pool, monkeypatch):
    monkeypatch.setenv(pool_client.VARIABLE, pool)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_strikes_and_proves_it(kind, warm, tmp_path):
    skip_without(kind)
    leg = leg_of(tmp_path, kind)
    finished = run(leg, tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert verdict(leg, tmp_path) == ""
    assert len(events(leg, tmp_path, "fault_fired")) == 1


IDLE = """
import importlib, json, os, sys
from pathlib import Path
from takeback import leg_job
from takeback.launchers import local
os.environ.update(leg_job.IMPORT_TIME)
local.preload()
for line in sys.stdin:
    kind, folder, spec = json.loads(line)
    if os.fork() == 0:
        importlib.import_module("takeback.faults." + kind).strike = lambda injection: injection.let_go()
        module = importlib.import_module("takeback.faults." + kind)
        if hasattr(module, "act"):
            module.act = lambda **parameters: None
        leg_job.run(spec, Path(folder), Path.cwd())
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """A run of each fault whose strike does nothing."""
    folder = tmp_path_factory.mktemp("idle")
    legs = {kind: leg_of(folder, kind, LOOP.format(seconds=0)) for kind in KINDS if not LACKS.get(kind)}
    lines = [json.dumps([kind, str(folder / kind / leg.id), leg.spec]) for kind, leg in legs.items()]
    subprocess.run([sys.executable, "-c", IDLE], input="\n".join(lines), text=True, check=True, timeout=300)
    return folder, legs


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_told_from_its_absence(kind, idle):
    skip_without(kind)
    folder, legs = idle
    said = verdict(legs[kind], folder / kind)
    assert said.startswith(("the fault never struck: ", "rank 1 had ended before"))


def test_ranks_that_have_not_noticed_a_fault_in_time_are_ended_and_counted_as_hung(warm, tmp_path):
    text = LOOP.format(seconds=60)
    leg = script(tmp_path, text, faults=(planned("sigstop"),), deadline=60.0, notice=0.5)
    assert run(leg, tmp_path).returncode == 0
    hung = events(leg, tmp_path, "hang_detected")
    assert (hung.seconds.item(), hung.ranks.item()) == (0.5, [0, 1])
    assert hung.monotonic.item() - events(leg, tmp_path, "fault_fired").monotonic.item() < 30


HOSTS = """
import os, socket
from takeback import probe

def reaches():
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 1).close()
    except OSError:
        return False
    return True

probe.restored(0)
before = reaches()
probe.step(1, 1.0)
while '"fault_fired"' not in open("records/supervisor.jsonl").read():
    pass
probe.record("note", before=before, after=reaches(), namespace=os.readlink("/proc/self/ns/net"))
"""


@pytest.mark.skipif(network.unavailable() is not None, reason=f"needs root: {network.unavailable()}")
def test_a_cut_takes_the_network_of_the_victim_alone_in_namespaces_of_their_own(warm, tmp_path):
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    leg = script(tmp_path, HOSTS, faults=(planned("network_cut"),))
    assert run(leg, tmp_path).returncode == 0
    notes = events(leg, tmp_path, "note").set_index("rank")
    assert notes.before.to_dict() == {0: True, 1: True}
    assert notes.after.to_dict() == {0: True, 1: False}
    assert len({*notes.namespace, os.readlink("/proc/self/ns/net")}) == 3
    assert subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout == links
    assert events(leg, tmp_path, "launched").host.tolist() == ["10.77.0.11", "10.77.0.12"]


SILENCE = """
import os, signal, socket, time
from takeback import probe
HOST, rank = os.environ["TAKEBACK_HOST"], os.environ["RANK"]
probe.restored(0)
if rank == "1":
    listening = socket.create_server((HOST, 5000))  # a port of this namespace alone
    open("listening", "w").close()
    peer, _ = listening.accept()
else:
    while not os.path.exists("listening"):
        time.sleep(0.01)
    peer = socket.create_connection(("10.77.0.12", 5000))
probe.step(1, 1.0)
peer.settimeout(1)
while '"exited"' not in open("records/supervisor.jsonl").read():
    time.sleep(0.01)
try:
    heard = repr(peer.recv(1))
except OSError as error:
    heard = type(error).__name__
probe.record("note", text=heard)
"""


@pytest.mark.skipif(network.unavailable() is not None, reason=f"needs root: {network.unavailable()}")
def test_the_peers_of_a_host_that_is_gone_hear_nothing(warm, tmp_path):
    leg = script(tmp_path, SILENCE, faults=(planned("host_gone"),))
    assert run(leg, tmp_path).returncode == 0
    assert events(leg, tmp_path, "note").text.item() == "TimeoutError"


@pytest.mark.skipif(network.unavailable() is not None, reason=f"needs root: {network.unavailable()}")
def test_two_faults_of_one_run_strike_the_same_hosts(warm, tmp_path):
    both = (planned("network_cut", [0]), {**planned("host_gone"), "id": "1"})
    leg = script(tmp_path, LOOP.format(seconds=5), faults=both, notice=2.0)
    assert run(leg, tmp_path).returncode == 0
    assert verdict(leg, tmp_path) == ""


def test_without_netem_a_delay_is_not_run_and_says_why(warm, tmp_path):
    reason = network.unavailable() or network.no_netem()
    leg = script(tmp_path, LOOP.format(seconds=0), faults=(planned("network_delay"),))
    assert run(leg, tmp_path).returncode == 0
    if reason:
        assert events(leg, tmp_path).reason.tolist() == [reason]
    else:
        assert verdict(leg, tmp_path) == ""


PAUSED = """
import os, signal
from takeback import probe
probe.restored(0)
probe.step(1, 1.0)
probe.record("note", text=os.readlink("/proc/self/ns/net"))
signal.pause()
"""


def notes_of(leg, runs, count):
    """The notes of that many ranks of a run that is still going on, as text and pid."""
    files = list((runs / leg.id / "records").glob("attempt0-rank*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    notes = [(line["text"], line["pid"]) for line in lines if line["kind"] == "note"]
    return notes if len(notes) == count else None


@pytest.mark.skipif(network.unavailable() is not None, reason=f"needs root: {network.unavailable()}")
def test_no_namespace_outlives_a_supervisor_that_is_killed(tmp_path):
    leg = script(tmp_path, PAUSED, faults=(planned("network_cut"),))
    with subprocess.Popen(command_of(leg, tmp_path)) as supervisor:
        notes = wait_for(lambda: notes_of(leg, tmp_path, 2), 60)
        ranks = [psutil.Process(pid) for _, pid in notes]
        supervisor.send_signal(signal.SIGKILL)
    psutil.wait_procs(ranks, timeout=30)
    alive = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            alive.add(os.readlink(path))
        except OSError:
            continue  # it has just ended
    assert alive.isdisjoint(text for text, _ in notes)


@pytest.mark.skipif(cgroup.unavailable() is not None, reason=f"needs root: {cgroup.unavailable()}")
def test_a_control_group_that_outlives_its_supervisor_is_listed_and_removed(tmp_path):
    code = "import os, signal; from takeback.cgroup import Group; Group('0-1'); os.kill(os.getpid(), signal.SIGKILL)"
    killed = subprocess.Popen([sys.executable, "-c", code])
    killed.wait()
    name = f"takeback-{killed.pid}-0-1"
    assert [line for line in leftovers.cgroups() if name in line]
    subprocess.run([sys.executable, "-m", "takeback", "leftovers", "--remove"], check=False, capture_output=True)
    assert not [line for line in leftovers.cgroups() if name in line]


@pytest.mark.skipif(cgroup.unavailable() is not None, reason=f"needs root: {cgroup.unavailable()}")
def test_a_group_in_use_is_no_leftover(tmp_path):
    group = cgroup.Group("0-1")
    try:
        cgroup.remove_stale()
        assert group.folder.exists()
        assert not [line for line in leftovers.cgroups() if str(group.folder) in line]
    finally:
        group.remove()
    assert not group.folder.exists()
