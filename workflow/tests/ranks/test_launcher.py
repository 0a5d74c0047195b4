"""The local launcher: receipts, deadlines, and nothing left, with real processes and signals."""

import os
import select
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest
from launch import FOREIGN, command_of, events, fault, losses, run, script
from takeback import clock, pool_client
from takeback.launchers import process as process_module
from takeback.leg import Leg

LOOP = """
import os, sys
from takeback import probe
probe.restored(0)
for step in range(1, 6):
    probe.step(step, 1.0 / step, samples=[step])
"""


@pytest.fixture(autouse=True)
def warm(request, pool, monkeypatch):
    """Runs start in the pool, which takes a tenth of the time, but for the tests that are about the supervisor."""
    if "cold" not in request.keywords:
        monkeypatch.setenv(pool_client.VARIABLE, pool)


def foreign(**more):
    return Leg({"command": ["python", FOREIGN, "{checkpoints}"], "settings": {}}, "gloo", 2, **more)


def test_a_foreign_script_goes_through_is_killed_and_resumes(tmp_path):
    killed = foreign(faults=(fault(6),))
    resumed = foreign(parent=killed)
    reference = foreign()
    for leg in (reference, killed, resumed):
        finished = run(leg, tmp_path)
        assert finished.returncode == 0, finished.stderr
    assert losses(killed, tmp_path).groupby("rank").step.max().to_dict() == {0: 6, 1: 6}
    assert set(events(resumed, tmp_path, "restored").step) == {4}
    whole, rest = losses(reference, tmp_path), losses(resumed, tmp_path)
    assert sorted(rest.step.unique()) == list(range(5, 13))
    joined = rest.merge(whole, on=["rank", "step"], suffixes=("", "_reference"))
    assert (joined.loss_bits == joined.loss_bits_reference).all()


def test_the_same_script_runs_alone_and_leaves_no_records(tmp_path):
    """Started by torchrun, without the suite, the three calls do nothing."""
    torchrun = [
        os.path.join(os.path.dirname(os.sys.executable), "torchrun"),
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TAKEBACK_")}
    finished = subprocess.run(
        [*torchrun, FOREIGN, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_fault_leaves_a_receipt_from_the_victim_the_supervisor_and_the_kernel(tmp_path):
    leg = script(tmp_path, LOOP, faults=(fault(3),))
    assert run(leg, tmp_path).returncode == 0
    held, fired, exited = (events(leg, tmp_path, kind) for kind in ("held", "fault_fired", "exited"))
    assert (held["rank"].item(), held.step.item()) == (1, 3)
    assert fired.victims.item()[0]["pid"] == held.pid.item()
    victim = exited[exited.of_rank == 1]
    assert (victim.signal.item(), victim.by.item()) == (signal.SIGKILL, "fault")
    assert losses(leg, tmp_path).groupby("rank").step.max().to_dict() == {0: 5, 1: 3}


def test_with_all_ranks_as_victims_none_ends_by_itself(tmp_path):
    text = LOOP.replace("range(1, 6)", "range(1, 100000)")
    leg = script(tmp_path, text, faults=(fault(3, "all"),))
    assert run(leg, tmp_path).returncode == 0
    assert set(events(leg, tmp_path, "exited").signal) == {signal.SIGKILL}


ONLY_RANK_0 = """
import os
from takeback import probe
probe.restored(0)
while True:
    if os.environ["RANK"] == "0":
        probe.point("save", 3)
"""


def test_the_machine_can_go_at_a_point_that_only_one_rank_passes(tmp_path):
    leg = script(tmp_path, ONLY_RANK_0, faults=(fault(3, "all", "save"),), deadline=30.0)
    assert run(leg, tmp_path).returncode == 0
    assert set(events(leg, tmp_path, "exited").signal) == {signal.SIGKILL}
    assert events(leg, tmp_path, "held")["rank"].tolist() == [0]


ONE_IS_DONE = """
import os
from takeback import probe
probe.restored(0)
if os.environ["RANK"] == "1":
    while '"exited"' not in open("records/supervisor.jsonl").read():
        pass
    probe.step(1, 1.0)
"""


def test_a_rank_that_has_ended_is_not_struck(tmp_path):
    leg = script(tmp_path, ONE_IS_DONE, faults=(fault(1, "all"),))
    finished = run(leg, tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert [victim["rank"] for victim in events(leg, tmp_path, "fault_fired").victims.item()] == [1]
    assert events(leg, tmp_path, "fault_fired").ends_by.item() == [{"signal": 9}]


def test_a_state_entry_of_any_name_is_no_receipt(tmp_path):
    text = LOOP.replace("samples=[step]", "state={'held': 1, 'kind': 2}")
    leg = script(tmp_path, text, faults=(fault(3),))
    assert run(leg, tmp_path).returncode == 0
    assert events(leg, tmp_path, "held").step.item() == 3


def test_a_fault_whose_point_is_never_reached_does_not_strike(tmp_path):
    leg = script(tmp_path, LOOP, faults=(fault(99),))
    assert run(leg, tmp_path).returncode == 0
    assert "fault_fired" not in set(events(leg, tmp_path).kind)
    assert set(events(leg, tmp_path, "exited").status) == {0}


def test_a_rank_that_hangs_is_ended_at_the_deadline_and_said(tmp_path):
    leg = script(tmp_path, "import signal\nsignal.pause()\n", deadline=1.0)
    assert run(leg, tmp_path).returncode == 0
    assert len(events(leg, tmp_path, "hang_detected")) == 1
    assert set(events(leg, tmp_path, "exited").by) == {"supervisor"}


def test_an_exception_is_recorded_with_its_type_and_text(tmp_path):
    leg = script(tmp_path, "raise ValueError('no such luck')\n", world=1)
    assert run(leg, tmp_path).returncode == 0
    error = events(leg, tmp_path, "error")
    assert (error.type.item(), error.text.item()) == ("ValueError", "no such luck")
    assert events(leg, tmp_path, "exited").status.item() == 1


def test_a_command_that_is_no_python_is_started_too(tmp_path):
    leg = Leg({"command": ["sh", "-c", "echo rank $RANK of $WORLD_SIZE; exit 3"], "settings": {}}, "gloo", 2)
    assert run(leg, tmp_path).returncode == 0
    assert (tmp_path / leg.id / "stdout" / "rank-1.txt").read_text() == "rank 1 of 2\n"
    assert set(events(leg, tmp_path, "exited").status) == {3}


def test_options_of_the_interpreter_are_understood(tmp_path):
    leg = Leg(
        {"command": ["python", "-u", "-c", "import sys; print(sys.argv[1:])", '{"a": {checkpoints}}'], "settings": {}},
        "gloo",
        1,
    )
    assert run(leg, tmp_path).returncode == 0
    said = (tmp_path / leg.id / "stdout" / "rank-0.txt").read_text()
    assert said == f"['{{\"a\": {tmp_path / leg.id / 'checkpoints'}}}']\n"


def test_a_package_runs_by_its_main_module(tmp_path):
    leg = Leg({"command": ["python", "-m", "unittest", "--help"], "settings": {}}, "gloo", 1)
    assert run(leg, tmp_path).returncode == 0
    assert "python -m unittest" in (tmp_path / leg.id / "stdout" / "rank-0.txt").read_text()


LATE = """
import atexit, os, threading
from concurrent.futures import ThreadPoolExecutor
from takeback import probe
atexit.register(lambda: open("exit", "w").close())
again = threading.Event()
threading.Thread(target=lambda: (again.wait(), open("thread", "w").close())).start()
ThreadPoolExecutor().submit(lambda: (again.wait(), open("executor", "w").close()))
again.set()
"""


def test_threads_and_exit_functions_of_a_trainer_are_waited_for(tmp_path):
    leg = script(tmp_path, LATE, world=1)
    assert run(leg, tmp_path).returncode == 0
    assert {"exit", "thread", "executor"} <= {path.name for path in (tmp_path / leg.id).iterdir()}


def test_a_module_runs_as_main_with_its_arguments(tmp_path):
    leg = Leg({"command": ["python", "-m", "json.tool", "--help"], "settings": {}}, "gloo", 1)
    assert run(leg, tmp_path).returncode == 0
    assert "usage" in (tmp_path / leg.id / "stdout" / "rank-0.txt").read_text()


def test_globals_outlive_the_program_until_its_process_ends(tmp_path):
    """A destructor at the end of the program must not run: DDP's can wait for ever (see launchers/rank.py)."""
    text = "class Loud:\n    def __del__(self): print('destroyed')\nkept = Loud()\n"
    leg = script(tmp_path, text, world=1)
    assert run(leg, tmp_path).returncode == 0
    assert (tmp_path / leg.id / "stdout" / "rank-0.txt").read_text() == ""


WORKERS = """
import os, subprocess, sys, time
if os.environ["RANK"] == "0":
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    open("started", "w").close()
while not os.path.exists("started"):  # the first rank that comes to the step has both killed
    time.sleep(0.01)
from takeback import probe
probe.restored(0)
probe.step(1, 1.0)
"""


def test_processes_that_a_rank_has_started_end_with_the_attempt(tmp_path):
    leg = script(tmp_path, WORKERS, faults=(fault(1, "all"),))
    before = pausing()
    assert run(leg, tmp_path).returncode == 0
    assert pausing() <= before


def pausing():
    return {
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "signal.pause" in " ".join(process.info["cmdline"] or [])
    }


def start(leg, runs, *more):
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    hears = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background ignores it
    process = subprocess.Popen(command_of(leg, runs, *more), **silent, preexec_fn=hears)
    return psutil.Process(process.pid), process


def gone(processes, timeout):
    """Whether the processes end; those that don't, because the guard is broken, are ended here."""
    _, alive = psutil.wait_procs(processes, timeout=timeout)
    for process in alive:
        process.kill()
    return not alive


def ranks_of(supervisor, count):
    """The ranks, once all of them have been started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ranks = supervisor.children()
        if len(ranks) == count:
            return ranks
        time.sleep(0.01)
    raise AssertionError("the ranks did not start")


@pytest.mark.cold
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_supervisor_that_is_ended_takes_its_ranks_with_it(tmp_path, number):
    leg = script(tmp_path, "import signal\nsignal.pause()\n")
    supervisor, process = start(leg, tmp_path)
    ranks = ranks_of(supervisor, 2)
    process.send_signal(number)
    assert process.wait(30) != 0
    assert gone(ranks, timeout=10)
    assert not (tmp_path / leg.id / "events.parquet").exists()


@pytest.mark.cold
def test_a_signal_that_comes_while_a_rank_is_forked_is_not_lost(tmp_path):
    text = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom takeback.launchers import rank\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        f"rank.start(['true'], {{}}, Path('/'), Path('/'), Path({str(tmp_path / 'out.txt')!r}))\n"
    )
    assert subprocess.run([sys.executable, "-c", text], stderr=subprocess.DEVNULL, check=False).returncode == 143


def test_a_child_that_stops_is_told_at_once():
    with process_module.told_of_children() as told:
        child = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
        try:
            assert select.select([told], [], [], 30)[0] == [told]
            assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
        finally:
            child.kill()
            child.wait()


@pytest.mark.cold
def test_a_run_ends_with_the_workflow_that_asked_for_it_also_when_that_is_killed(tmp_path):
    leg = script(tmp_path, "import signal\nsignal.pause()\n")
    words = " ".join(f"'{word}'" for word in command_of(leg, tmp_path))
    workflow = subprocess.Popen(["bash", "-c", f"{words} --parent $$ & wait"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (supervisors := psutil.Process(workflow.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.01)
    ranks = ranks_of(supervisors[0], 2)
    workflow.kill()
    workflow.wait()
    assert gone([*ranks, *supervisors], timeout=15)


@pytest.mark.cold
def test_a_run_whose_parent_is_gone_already_does_not_start(tmp_path):
    leg = script(tmp_path, LOOP)
    finished = subprocess.run([*command_of(leg, tmp_path), "--parent", "1"], check=False)
    assert finished.returncode == 1
    assert not (tmp_path / leg.id).exists()


def test_a_child_works_on_its_own_copy_and_the_parent_is_not_written(tmp_path):
    killed = foreign(faults=(fault(6),))
    run(killed, tmp_path)
    before = contents(tmp_path / killed.id)
    run(foreign(parent=killed), tmp_path)
    assert contents(tmp_path / killed.id) == before
    assert not any(path.stat().st_mode & 0o222 for path in (tmp_path / killed.id).rglob("*") if path.is_file())


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_backend_that_is_not_there_is_not_run_with_its_reason_and_so_is_its_child(tmp_path):
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a CUDA device here")
    parent = script(tmp_path, LOOP)
    import dataclasses

    parent = dataclasses.replace(parent, backend="nccl")
    for leg in (parent, dataclasses.replace(parent, parent=parent)):
        assert run(leg, tmp_path).returncode == 0
        assert events(leg, tmp_path).kind.tolist() == ["not_run"]
        assert events(leg, tmp_path).reason.item() == "no CUDA device"
        assert len(losses(leg, tmp_path)) == 0


def left_out(leg, tmp_path, monkeypatch, seconds):
    """Run a leg that must end in so many seconds; what its supervisor told."""
    monkeypatch.setenv(clock.VARIABLE, str(time.time() + seconds))
    assert run(leg, tmp_path).returncode == 0
    monkeypatch.delenv(clock.VARIABLE)
    assert events(leg, tmp_path, "not_run").reason.tolist() == [clock.REASON]
    assert (tmp_path / leg.id / clock.MARK).exists()
    return events(leg, tmp_path).kind.tolist()


@pytest.mark.cold
def test_once_time_is_up_no_run_begins_nor_does_its_child(tmp_path, monkeypatch):
    parent = script(tmp_path, LOOP)
    assert left_out(parent, tmp_path, monkeypatch, -1.0) == ["not_run"]
    child = script(tmp_path, LOOP, parent=parent)
    assert run(child, tmp_path).returncode == 0
    assert events(child, tmp_path).reason.tolist() == [clock.REASON]
    assert (tmp_path / child.id / clock.MARK).exists()


@pytest.mark.cold
def test_when_time_is_up_a_run_is_cut_off_and_does_not_count_as_hung(tmp_path, monkeypatch):
    leg = script(tmp_path, "import signal\nsignal.pause()\n")
    seconds, told = 4.0, []
    while "launched" not in told:  # a busy machine needs longer to come to it
        seconds *= 2
        told = left_out(leg, tmp_path, monkeypatch, seconds)
    assert told == ["launched", "launched", "not_run", "exited", "exited"]


def test_a_run_that_ends_in_time_is_not_marked(tmp_path):
    leg = script(tmp_path, LOOP)
    assert run(leg, tmp_path).returncode == 0
    assert not (tmp_path / leg.id / clock.MARK).exists()


def test_a_folder_that_can_not_be_written_is_one_line(tmp_path):
    leg = script(tmp_path, LOOP)
    (tmp_path / "file").write_text("")
    finished = run(leg, tmp_path / "file")
    assert finished.returncode == 1
    assert finished.stderr.startswith("takeback: ")
    assert finished.stderr.count("\n") == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with little space."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "takeback-disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "takeback", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_one_line_and_leaves_no_evidence_that_could_be_believed(small_disk, tmp_path):
    text = LOOP.replace("range(1, 6)", "range(1, 5000)")
    leg = script(tmp_path, text, world=1)
    finished = run(leg, small_disk)
    assert finished.returncode == 1
    assert finished.stderr.count("\n") == 1
    assert "No space left on device" in finished.stderr
    assert not (small_disk / leg.id / "events.parquet").exists()
