"""torchrun as a launcher, for real: agents and workers found, struck, started again, and none left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launch import TELLS_AFTERWARDS, command_of, events, losses, run, script, wait_for
from takeback import evidence, network, pool_client
from takeback.checkers import attempts
from takeback.checkers.case import LegView

# Workers that need no torch. They go step by step together, as collectives make them, and wait for who is lost.
LOOP = """
import os, time
from pathlib import Path
from takeback import probe
folder, kept = Path("checkpoints"), Path("checkpoints/step")
rank, world, count = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
def together(where):
    (folder / f"at-{count}-{rank}-{where}").touch()
    while not all((folder / f"at-{count}-{other}-{where}").exists() for other in range(int(world))):
        {lost}
        time.sleep(0.005)
together("start")
done = int(kept.read_text()) if kept.exists() else 0
probe.restored(done)
together("loaded")
for step in range(done + 1, {steps} + 1):
    probe.step(step, 1.0 / step, samples=[step])
    if step % 2 == 0 and rank == "0":
        (folder / "new").write_text(str(step))
        (folder / "new").rename(kept)
        probe.saved(step)
    together(step)
    time.sleep({pause})
probe.finished({steps})
"""


@pytest.fixture(autouse=True)
def warm(request, pool, monkeypatch):
    if "cold" not in request.keywords:
        monkeypatch.setenv(pool_client.VARIABLE, pool)


def planned(kind="sigkill", number=0, **more):
    whom = {} if {"agents", "nodes"} & more.keys() else {"ranks": "last"}
    return {"id": str(number), "kind": kind, "point": "step", "step": 3, "attempt": 0, **whom, **more}


def torchrun(tmp_path, *faults, steps=6, pause=0.01, text=LOOP, world=2, deadline=240.0, **given):
    # In the shared store a newcomer waits for an address that the others have told in an earlier round (torch 2.13).
    given = {"ports": "own"} | given
    launcher = {"kind": "torchrun", "with": given, "environment": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}}
    text = text.replace("{steps}", str(steps)).replace("{pause}", str(pause)).replace("{lost}", "pass")
    return script(tmp_path, text, world, faults=faults, launcher=launcher, deadline=deadline)


def lives(leg, runs):
    return attempts.lives_of(LegView(evidence.read(runs, leg.id)))


@pytest.fixture(scope="module")
def thrice(tmp_path_factory, pool):
    """Struck in each of three attempts, of which the launcher allows three: a rank, all, a rank."""
    folder = tmp_path_factory.mktemp("thrice")
    faults = planned(), planned(number=1, ranks="all", attempt=1, step=4), planned(number=2, attempt=2, step=5)
    leg = torchrun(folder, *faults, max_restarts=2)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(pool_client.VARIABLE, pool)
        finished = run(leg, folder, timeout=290)
    assert finished.returncode == 0, finished.stderr
    return leg, folder


def test_all_are_started_again_as_often_as_allowed_and_not_once_more(thrice):
    launched = events(*thrice, "launched")
    assert launched.groupby("attempt").of_rank.apply(sorted).tolist() == [[0, 1]] * 3
    assert launched.of_pid.is_unique
    assert launched.restarts.tolist() == launched.attempt.tolist()
    assert events(*thrice, "agent_exited").status.tolist() == [1]


@pytest.mark.skipif(network.unavailable() is not None, reason=f"needs root: {network.unavailable()}")
@pytest.mark.parametrize("ports", ["own", "shared"])
def test_no_other_run_can_take_the_ports_that_torchrun_found_free_if_it_has_its_own(tmp_path, ports):
    text = "import os\nprint(os.readlink('/proc/self/ns/net'), file=open('told', 'w'))"
    leg = torchrun(tmp_path, text=text, world=1, ports=ports)
    assert run(leg, tmp_path).returncode == 0
    is_ours = (tmp_path / leg.id / "told").read_text().strip() == os.readlink("/proc/self/ns/net")
    assert is_ours is (ports == "shared")


UNNAMED = """
import os, socket, sys
from takeback import network
def resolve(name):
    if sys.argv[1] == "unknown":
        raise socket.gaierror("no such name")
    return sys.argv[1]
socket.gethostbyname = resolve
before = os.readlink("/proc/thread-self/ns/net")
network.take_own_ports()
print(os.readlink("/proc/thread-self/ns/net") == before)
"""


@pytest.mark.skipif(network.unavailable() is not None, reason=f"needs root: {network.unavailable()}")
@pytest.mark.parametrize(("name", "stays"), [("unknown", True), ("198.51.100.1", True), ("127.0.1.1", False)])
def test_a_machine_that_is_not_known_by_its_name_without_a_network_keeps_its_own(name, stays):
    told = subprocess.run([sys.executable, "-c", UNNAMED, name], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(stays)


def test_each_attempt_is_struck_by_its_own_fault_alone(thrice):
    fired = events(*thrice, "fault_fired")
    assert dict(zip(fired.fault, fired.attempt, strict=True)) == {"0": 0, "1": 1, "2": 2}
    assert [len(victims) for victims in fired.victims] == [1, 2, 1]


def test_each_attempt_is_a_life_with_its_own_faults(thrice):
    found = lives(*thrice)
    assert [[fault["id"] for fault in life.spec["faults"]] for life in found] == [["0"], ["1"], ["2"]]
    assert [max(event.step for event in life.restored.values()) for life in found] == [0, 2, 2]


def test_a_worker_that_is_no_child_of_ours_ends_as_the_kernel_says(thrice):
    exits = events(*thrice, "exited")
    victims = exits[exits.by == "fault"]
    assert len(victims) == 4
    # Of two that die at one time torchrun may reap one unseen, and before Linux 6.15 the kernel tells it alone.
    known = victims[victims.known != "nobody"]
    assert len(known) >= (4 if TELLS_AFTERWARDS else 3)
    assert set(known.signal) == {signal.SIGKILL}
    assert set(exits[exits.known == "nobody"].by) <= {"launcher", "fault"}


def test_what_the_agents_noticed_comes_after_the_strike(thrice):
    fired, noticed = events(*thrice, "fault_armed"), events(*thrice, "launcher_noticed")
    assert len(noticed) >= 3
    assert noticed.monotonic.min() > fired.monotonic.min() - 0.01


ELASTIC = {
    "max_restarts": 2,
    "nproc": 1,
    "nnodes": "1:3",
    "rdzv_conf": "last_call_timeout=8,keep_alive_interval=1,keep_alive_max_attempt=3",
}
# A rank that has lost a peer ends, as it would in a collective.
SEES = """if count == "0" and "fault_fired" in Path("records/supervisor.jsonl").read_text(): os._exit(3)"""


def test_a_node_that_leaves_is_gone_with_its_ranks_and_the_others_form_a_group(tmp_path):
    leg = torchrun(tmp_path, planned(nodes=[1]), text=LOOP.replace("{lost}", SEES), **ELASTIC)
    finished = run(leg, tmp_path, timeout=290)
    assert finished.returncode == 0, finished.stderr
    victims = events(leg, tmp_path, "fault_fired").victims.item()
    assert sorted((victim["node"], victim["rank"] is None) for victim in victims) == [(1, False), (1, True)]
    before, after = lives(leg, tmp_path)
    assert (before.spec["world"], after.spec["world"]) == (2, 1)
    assert losses(leg, tmp_path).step.max() == 6


def test_a_node_that_comes_is_let_in_and_a_larger_group_forms(tmp_path):
    leg = torchrun(tmp_path, planned("node_arrives"), world=1, steps=200, pause=0.02, **ELASTIC)
    finished = run(leg, tmp_path, timeout=290)
    assert finished.returncode == 0, finished.stderr
    assert [life.spec["world"] for life in lives(leg, tmp_path)] == [1, 2]
    assert attempts.burned(LegView(evidence.read(tmp_path, leg.id))) == []


def test_ranks_outlive_an_agent_that_is_killed_and_their_end_is_known(tmp_path):
    leg = torchrun(tmp_path, planned(agents=[0]), max_restarts=1)
    assert run(leg, tmp_path, timeout=290).returncode == 0
    assert len(events(leg, tmp_path, "finished")) == 2
    exits = events(leg, tmp_path, "exited")
    assert set(zip(exits.status, exits.known, strict=True)) == {(0, "kernel")}


ON_NOTICE = """
import signal, time
from takeback import probe
def told(*_):
    probe.record("note", text="told")
    time.sleep({seconds})
    probe.saved(1)
    raise SystemExit(143)
signal.signal(signal.SIGTERM, told)
probe.restored(0)
probe.step(1, 1.0)
signal.pause()
"""


@pytest.mark.parametrize(("seconds", "saves"), [(0, True), (60, False)])
def test_sigterm_to_the_agent_reaches_the_ranks_which_have_so_long_to_save(tmp_path, seconds, saves):
    text = ON_NOTICE.replace("{seconds}", str(seconds))
    fault = planned("sigterm", agents=[0], step=1, **{"with": {"grace": 60.0}})
    leg = torchrun(tmp_path, fault, text=text, world=1, shutdown_timeout=2)
    assert run(leg, tmp_path, timeout=290).returncode == 0
    assert len(events(leg, tmp_path, "note")) == 1
    assert (len(events(leg, tmp_path, "saved")) == 1) is saves


def test_what_does_not_end_is_ended_at_the_deadline_agents_and_ranks(tmp_path):
    leg = torchrun(tmp_path, text="import time\nfrom takeback import probe\ntime.sleep(600)\n", world=1, deadline=20.0)
    assert run(leg, tmp_path, timeout=290).returncode == 0
    assert events(leg, tmp_path, "hang_detected").agents.item() == [0]
    assert events(leg, tmp_path, "agent_exited").by.item() == "supervisor"


def family(pid):
    """Supervisor, agents and workers below a process, once a worker is there."""

    def found():
        below = psutil.Process(pid).children(recursive=True)
        return below if any("RANK" in environment(one) for one in below) else None

    return wait_for(found, 120)


def environment(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}


def gone(processes):
    """Whether the processes end; those that don't, because the guard is broken, are ended here."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    for process in alive:
        process.kill()
    return not alive


@pytest.mark.cold
@pytest.mark.parametrize("which", ["the one that was asked", "its supervisor"])
def test_agents_and_ranks_end_when_a_supervisor_is_killed(tmp_path, which):
    leg = torchrun(tmp_path, text="import time\nfrom takeback import probe\ntime.sleep(600)\n", world=1)
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    asked = subprocess.Popen(command_of(leg, tmp_path), **silent)
    below = family(asked.pid)
    (asked if which == "the one that was asked" else psutil.Process(asked.pid).children()[0]).kill()
    assert asked.wait(60) != 0
    assert gone(below)
    assert not (tmp_path / leg.id / "events.parquet").exists()


@pytest.mark.cold
def test_a_command_that_is_no_python_is_started_too(tmp_path):
    leg = torchrun(tmp_path, world=1)
    leg.trainer["command"] = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE", "{checkpoints}"]
    assert run(leg, tmp_path, timeout=290).returncode == 0
    assert "rank 0 of 1\n" in Path(tmp_path / leg.id / "stdout" / "node-0.txt").read_text()
