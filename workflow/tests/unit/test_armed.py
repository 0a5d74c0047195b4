"""For which faults a rank holds itself: it knows its number and its attempt, and whoever starts it may not."""

import json
import os
import subprocess
import sys

import psutil
import pytest
from launch import wait_for

FAULTS = [
    {"id": "last", "point": "step", "step": 3, "attempt": 0, "ranks": "last"},
    {"id": "all", "point": "step", "step": 3, "attempt": 1, "ranks": "all"},
    {"id": "first", "point": "step", "step": 3, "attempt": 0, "ranks": [0]},
]


@pytest.mark.parametrize(
    ("rank", "attempt", "waits"), [(0, 0, ["first"]), (1, 0, ["last"]), (0, 1, ["all"]), (1, 1, ["all"]), (1, 2, [])]
)
def test_a_rank_waits_for_the_faults_of_its_own_number_and_attempt(tmp_path, rank, attempt, waits):
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TAKEBACK_RECORDS": str(tmp_path),
        "TAKEBACK_ARMED": json.dumps(FAULTS),
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    text = "from takeback import probe; probe.record('note'); print([fault['id'] for fault in probe._armed])"
    said = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(waits)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith(f"attempt{attempt}-rank{rank}-pid")


BESIDE = """
import os, subprocess, sys, threading
from takeback import probe
own, other = sorted(os.sched_getaffinity(0))[:2]

def save():
    os.sched_setaffinity(0, {other})
    probe.point("save.write", 3)
    print("went on", flush=True)

thread = threading.Thread(target=save)
hog = subprocess.Popen(["sh", "-c", f"taskset -cp {own} $$ >/dev/null; while :; do :; done"])
print(hog.pid, flush=True)
os.sched_setaffinity(0, {own})
thread.start()
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # from here on this thread hardly ever runs
thread.join()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_thread_that_is_held_goes_on_by_no_instruction_while_another_has_not_heard_of_it(tmp_path):
    fault = {"id": "0", "point": "save.write", "step": 3, "attempt": 0, "ranks": "all"}
    environment = {
        "RANK": "0",
        "TAKEBACK_RECORDS": str(tmp_path),
        "TAKEBACK_ARMED": json.dumps([fault]),
        "PYTHONPATH": ":".join(filter(None, sys.path)),
        "PATH": os.environ["PATH"],
    }
    with subprocess.Popen([sys.executable, "-c", BESIDE], env=environment, stdout=subprocess.PIPE, text=True) as rank:
        hog = psutil.Process(int(rank.stdout.readline()))
        try:
            wait_for(lambda: psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED, 30)
        finally:
            rank.kill()
            hog.kill()
        assert rank.stdout.read() == ""
