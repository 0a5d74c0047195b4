"""Each fault for real: what it does to its victim, its receipt, and that its absence can be told."""

import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from launch import events, losses, run
from takeback import evidence, faults, pool_client
from takeback.checkers import fault as checker
from takeback.checkers.case import LegView
from takeback.faults import Injection, Surroundings, Victim, spot_notice
from takeback.launchers import ports, process
from takeback.leg import Leg

LOOP = """
import signal, sys, time
from takeback import probe
probe.restored(0)
for step in range(1, 9):
    probe.step(step, 1.0 / step, samples=[step])
    if step == 4 and len(sys.argv) > 2:
        time.sleep(float(sys.argv[2]))
"""
#: Fault, its parameters, and how its victim ends.
FAULTS = [
    ("sigkill", {}, {"signal": 9, "by": "fault"}),
    ("sigterm", {"grace": 30.0}, {"signal": 15, "by": "fault"}),
    ("sigstop", {}, {"signal": 9, "by": "supervisor"}),
    ("pause", {"seconds": 0.2}, {"status": 0, "by": "itself"}),
    ("exit", {"status": 5}, {"status": 5, "by": "fault"}),
    ("exception", {}, {"status": 1, "by": "fault"}),
    ("segfault", {}, {"signal": 11, "by": "fault"}),
    ("spot_notice", {"cloud": "ec2", "grace": 0.1}, {"signal": 9, "by": "fault"}),
]
KINDS = [kind for kind, _, _ in FAULTS]


def planned(kind, given=None, *more, script, sleeps=0.0, world=1, **where):
    fault = {"id": "0", "kind": kind, "ranks": "last", "point": "step", "step": 4, "attempt": 0, **where}
    command = ["python", str(script), "{checkpoints}", str(sleeps)]
    faults = ({**fault, **({"with": given} if given else {})}, *more)
    return Leg({"command": command, "settings": {}}, "gloo", world, faults=faults, deadline=30.0)


@pytest.fixture(autouse=True)
def warm(pool, monkeypatch):
    monkeypatch.setenv(pool_client.VARIABLE, pool)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("trainer") / "script.py"
    path.write_text(LOOP)
    return path


def flaw_of(folder: Path, leg_id: str) -> str | None:
    return checker._struck(LegView(evidence.read(folder, leg_id))).sentence


@pytest.mark.parametrize(("kind", "given", "end"), FAULTS, ids=KINDS)
def test_a_fault_does_to_its_victim_what_it_says(script, tmp_path, kind, given, end):
    # One that polls a metadata server needs time to be killed in; this one never asks, and is killed at the end.
    leg = planned(kind, given, script=script, sleeps=20 if kind == "spot_notice" else 0)
    assert run(leg, tmp_path).returncode == 0
    (exited,) = events(leg, tmp_path, "exited").to_dict("records")
    assert {key: exited[key] for key in end} == end
    assert flaw_of(tmp_path, leg.id) == ""


def test_a_rank_that_is_stopped_before_it_has_asked_does_not_hold_up_the_notice(script, tmp_path):
    asking = tmp_path / "asking.py"
    connect = """import os, socket
host, port = os.environ["GCE_METADATA_HOST"].split(":")
connection = socket.create_connection((host, int(port)))
probe.restored(0)"""
    asking.write_text(LOOP.replace("probe.restored(0)", connect))
    leg = planned("spot_notice", {"cloud": "gce", "grace": 0.1}, script=asking, sleeps=20)
    assert run(leg, tmp_path).returncode == 0
    assert flaw_of(tmp_path, leg.id) == ""


def test_a_metadata_server_that_does_not_answer_is_no_proof():
    assert not spot_notice.answers(SimpleNamespace(cloud="gce", port=ports.free_port()))  # held, and nobody listens


@pytest.fixture(scope="module")
def unstruck(script, tmp_path_factory):
    """Legs in which each fault is planned and does nothing."""
    folder = tmp_path_factory.mktemp("unstruck")
    for kind, given, _ in FAULTS:
        (folder / f"{kind}.json").write_text(planned(kind, given, script=script).spec_json)
    command = [sys.executable, Path(__file__).with_name("unstruck.py"), folder]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_that_does_nothing_can_be_told(unstruck, kind):
    assert flaw_of(unstruck, kind).startswith("the fault never struck: ")


def test_faults_by_the_clock_and_at_random_strike_without_a_point(script, tmp_path):
    for point, more in (("time", {"seconds": 0.1, "step": None}), ("random", {"pause": 0.5, "step": 3})):
        leg = planned("sigkill", None, script=script, sleeps=20, point=point, **more)
        assert run(leg, tmp_path).returncode == 0
        assert events(leg, tmp_path, "exited").signal.item() == 9
        assert not len(events(leg, tmp_path, "held"))
        assert flaw_of(tmp_path, leg.id) == ""


def test_a_random_fault_strikes_before_a_run_ends_that_has_become_faster(script, tmp_path):
    quick = tmp_path / "quick.py"
    quick.write_text(script.read_text().replace("step == 4", "step == 7"))
    leg = planned("sigkill", None, script=quick, sleeps=20, point="random", pause=1e9)
    assert run(leg, tmp_path).returncode == 0
    assert flaw_of(tmp_path, leg.id) == ""
    assert losses(leg, tmp_path).step.max() == 7


def test_a_random_fault_that_has_struck_holds_nobody_up_when_it_would_be_overdue(script, tmp_path):
    leg = planned("pause", {"seconds": 0.01}, script=script, sleeps=0.5, point="random", pause=0.0)
    assert run(leg, tmp_path).returncode == 0
    assert events(leg, tmp_path, "exited").status.item() == 0
    assert events(leg, tmp_path, "held").step.tolist() == [7]


def test_a_rank_that_comes_by_after_its_fault_has_struck_goes_on(script, tmp_path):
    """All are told at one instant; those that come to the point later must not stay there for ever."""
    leg = planned("sigterm", {"grace": 20.0}, script=script, world=4, ranks="all")
    late = """import pathlib
signal.signal(signal.SIGTERM, lambda *_: None)
pathlib.Path(f"ready-{probe._rank}").touch()
while probe._rank == 0 and len(list(pathlib.Path().glob("ready-*"))) < 4:
    time.sleep(0.01)
probe.restored(0)"""
    text = LOOP.replace("probe.restored(0)", late)
    # Each rank comes later than the one before it: the notice reaches the last ones on their way.
    delay = "    time.sleep(0.2 * probe._rank * (step == 4))\n    probe.step("
    script.write_text(text.replace("    probe.step(", delay, 1))
    try:
        assert run(leg, tmp_path).returncode == 0
    finally:
        script.write_text(LOOP)
    assert events(leg, tmp_path, "exited").status.tolist() == [0] * 4


class First(Victim):
    """Once it is killed the supervisor is off the CPU: until it has ended, and the second has too if it sees that."""

    def send(self, number):
        super().send(number)
        if number == signal.SIGKILL:
            select.select([self.descriptor], [], [])
            if not process.is_stopped(self.node):
                os.waitid(os.P_PID, self.node, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("kind", ["sigkill", "sigterm"])
def test_of_several_victims_none_sees_the_end_of_another(tmp_path, kind):
    deaf = partial(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    first = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, preexec_fn=deaf)
    second = subprocess.Popen(["cat"], stdin=first.stdout, preexec_fn=deaf)  # ends by itself when the first is gone
    victims = [First(0, first.pid, os.pidfd_open(first.pid), second.pid)]
    victims.append(Victim(1, second.pid, os.pidfd_open(second.pid)))
    injection = Injection({"kind": kind, "with": {"grace": 0.0}}, victims, tmp_path, Surroundings(), victims)
    try:
        list(faults.get(kind).strike(injection) or [])
        assert [first.wait(), second.wait()] == [-signal.SIGKILL] * 2
    finally:
        for one in (first, second):
            one.kill()
            one.wait()
        first.stdout.close()


def test_two_faults_strike_the_same_run(script, tmp_path):
    second = {"id": "1", "kind": "exit", "ranks": [0], "point": "step", "step": 6, "attempt": 0}
    leg = planned("pause", {"seconds": 0.1}, second, script=script)
    assert run(leg, tmp_path).returncode == 0
    assert list(events(leg, tmp_path, "fault_fired").action) == ["pause", "exit"]
    assert flaw_of(tmp_path, leg.id) == ""
