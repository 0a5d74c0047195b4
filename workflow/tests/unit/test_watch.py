"""Processes that others than the supervisor have started: how and when they ended, whoever reaped them."""

import os
import select
import signal
import subprocess
import time

import pytest
from launch import TELLS_AFTERWARDS
from takeback.faults import Victim
from takeback.launchers import injector as injector_module
from takeback.launchers.agents import Process
from takeback.launchers.elastic import ElasticInjector
from takeback.launchers.watch import Watched


@pytest.fixture
def started():
    """Starts a process as rank 0; those which are still there are killed."""
    children = []

    def start(*words):
        children.append(subprocess.Popen(words))
        descriptor = os.pidfd_open(children[-1].pid)
        return Process(Victim(0, children[-1].pid, descriptor), time.monotonic()), children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("words", "status", "number"), [(("sleep", "60"), None, 9), (("sh", "-c", "exit 7"), 7, None)])
def test_how_a_process_ended_is_known_also_when_its_parent_was_faster(started, words, status, number):
    one, child = started(*words)
    if number:
        child.kill()
    child.wait()  # as an agent does that closes its group
    one.end(1.0)
    assert one.ended == 1.0
    assert one.how() == {
        "status": status if TELLS_AFTERWARDS else None,
        "signal": number if TELLS_AFTERWARDS else None,
        "known": "kernel" if TELLS_AFTERWARDS else "nobody",
    }


@pytest.mark.parametrize(
    ("kind", "whom", "further"),
    [
        ("sigkill", {"ranks": "all"}, [{"known": "nobody"}]),
        ("sigkill", {"agents": [0]}, [{"status": 1}]),
        ("exit", {"ranks": "all"}, []),
        ("sigstop", {"ranks": "all"}, []),
        ("pause", {"ranks": "all"}, []),
    ],
)
def test_a_victim_of_whose_end_its_agent_alone_was_told_has_ended_by_the_fault(tmp_path, kind, whom, further):
    injector = ElasticInjector([], tmp_path, 1, {}, None, {}, None)
    fault = {"kind": kind, **whom}
    assert injector._ends_by(fault) == [*injector_module.ends_by(fault), *further]


class Restarted(Watched):
    """An agent ends a worker when the watch is awake already, and starts another, which is found at once."""

    def look_for_workers(self):
        if len(self.processes) == 1:
            (old,) = self.processes.values()
            old.victim.send(signal.SIGKILL)
            select.select([old.victim.descriptor], [], [])
            self.add("true")

    def add(self, *words):
        one, _ = self.started(*words)
        self.processes[one.pid] = one


def test_a_worker_that_ended_before_another_was_started_is_known_to_have(tmp_path, started):
    watched = Restarted({"faults": [], "deadline": 60.0}, tmp_path, tmp_path, None, {}, 1)
    watched.started = started
    watched.add("sleep", "60")
    watched.watch([])
    old, new = watched.processes.values()
    assert old.ended <= new.began
