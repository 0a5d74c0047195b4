"""Ctrl-C and SIGKILL in the middle leave nothing running and nothing half-believed, and the next call goes on."""

import contextlib
import os
import signal
import time

import psutil
import pytest
from flow import SMALL, Flow
from takeback.leftovers import leftovers

PLAIN = {**SMALL, "include": [], "controls": [], "claims": []}


def until(condition, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # not busily: the workflow needs the cores


def end(call):
    """Whatever the test has come to, its workflow does not outlive it."""
    if call.poll() is None:
        os.killpg(call.pid, signal.SIGKILL)
        call.wait()


def ours_of(call, folder):
    """What a call has left; others may be at work on this machine."""
    return [line for line in leftovers() if str(folder) in line or f"takeback-{call.pid}-" in line]


def words_of(process):
    """The words of a process; of one that has just ended none."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@pytest.mark.parametrize("warm", ["true", "false"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_workflow_leaves_nothing_and_goes_on(tmp_path, request, number, warm):
    flow = Flow(tmp_path, small=PLAIN)
    call = flow.start("small", warm=warm)
    request.addfinalizer(lambda: end(call))
    until(flow.legs, "no run has ended")
    ours = psutil.Process(call.pid).children(recursive=True)
    assert any("pool" in words_of(process) for process in ours) is (warm == "true")
    if number == signal.SIGINT:
        os.killpg(call.pid, number)  # as a terminal does
    else:
        call.kill()
    assert call.wait(60) != 0
    _, alive = psutil.wait_procs(ours, timeout=20)
    assert alive == []
    until(lambda: not ours_of(call, tmp_path), "something is left", 20)
    if number == signal.SIGKILL:
        assert flow.run("--unlock").returncode == 0
    again = flow.run("small", "--rerun-incomplete")
    assert again.returncode == 0, again.stdout
    assert "small: 2 of 2 cells as predicted (2 equal)" in again.stdout


def test_two_workflows_in_two_folders_do_not_meet(tmp_path, request):
    flows = [Flow(tmp_path / name, small=PLAIN) for name in ("one", "two")]
    calls = [flow.start("small") for flow in flows]
    request.addfinalizer(lambda: [end(call) for call in calls])
    assert [call.wait(240) for call in calls] == [0, 0]
    assert flows[0].legs() == flows[1].legs()
