"""What Slurm's daemons say, in lines of Slurm 22.05."""

from datetime import datetime
from types import SimpleNamespace

import pytest
from takeback.launchers import slurm_log
from takeback.launchers.slurm import Job

SLURMD = """\
[2026-11-30T06:54:32.909] launch task StepId=7.0 request from UID:0 GID:0 HOST:127.0.0.1 PORT:48866
[2026-11-30T06:54:32.970] [7.batch] task 0 (600) started 2026-11-30T06:54:32
[2026-11-30T06:54:32.975] [7.0] task 2 (619) started 2026-11-30T06:54:32
[2026-11-30T06:54:32.977] [7.0] task 3 (620) started 2026-11-30T06:54:32
[2026-11-30T06:54:33.583] [7.0] proctrack/linuxproc: _kill_proclist: Sending signal 18 to pid 620 (python)
[2026-11-30T06:54:33.586] [7.0] proctrack/linuxproc: _kill_proclist: Sending signal 15 to pid 619 (python)
[2026-11-30T06:54:33.588] [7.0] task 2 (619) exited. Killed by signal 15.
[2026-11-30T06:54:33.689] [7.0] task 3 (620) exited with exit code 143.
[2026-11-30T06:54:33.700] [8.0] task 0 (700) started 2026-11-30T06:54:33
"""
SLURMCTLD = """\
[2026-11-30T06:47:03.447] sched/backfill: _start_job: Started JobId=7 in low on n[0-1]
[2026-11-30T06:47:04.448] preempted JobId=7 has been requeued to reclaim resources for JobId=17
[2026-11-30T06:47:06.243] Requeuing JobId=7
[2026-11-30T06:47:06.243] sched: Allocate JobId=17 NodeList=n[0-1] #CPUs=16 Partition=high
[2026-11-30T06:47:12.521] sched: Allocate JobId=7 NodeList=n[0-1] #CPUs=2 Partition=low
[2026-11-30T06:47:13.000] requeue job JobId=7 due to failure of node n1
[2026-11-30T06:47:14.000] preempted JobId=77 has been killed to reclaim resources for JobId=17
"""


@pytest.fixture
def log(tmp_path):
    def written(text):
        path = tmp_path / "daemon.log"
        path.write_text(text)
        return path

    return written


def test_a_task_has_its_rank_its_end_and_whether_it_was_told_to_go(log):
    found = slurm_log.tasks(log(SLURMD), "7", node=1)
    assert [(task.pid, task.rank, task.node, task.code) for task in found] == [(619, 2, 1, -15), (620, 3, 1, 143)]
    assert [task.signalled for task in found] == [True, False], "SIGCONT tells nobody to go"


def test_times_are_those_of_the_wall(log):
    first = slurm_log.tasks(log(SLURMD), "7", node=0)[0]
    assert datetime.fromtimestamp(first.began).isoformat(timespec="milliseconds") == "2026-11-30T06:54:32.975"
    assert first.ended - first.began == pytest.approx(0.613)


def test_other_jobs_are_passed_over(log):
    found = slurm_log.account(log(SLURMCTLD), "7")
    assert len(found.allocated) == 2
    assert [line.split(" JobId")[0] for _, line in found.taken] == ["preempted", "Requeuing", "requeue job"]
    assert slurm_log.account(log(SLURMCTLD), "17").taken == []


def test_no_log_tells_nothing(tmp_path):
    assert slurm_log.tasks(tmp_path / "none", "7", 0) == []


def test_a_job_that_has_ended_is_not_over_before_the_receipt_of_its_fault_is_read(tmp_path):
    job = Job.__new__(Job)
    cluster = {"client": lambda *_: "2", "job": lambda _: {"JobState": "PREEMPTED"}, "folder": tmp_path}
    job.cluster, job.number, job.asked, job.answer_by = SimpleNamespace(**cluster), "1", 0.0, 0.0
    job.spec = {"launcher": "slurm"}
    asking = job.asked_to_go("preempted", "sbatch")
    assert next(asking) < 1
    assert not job.is_over()
    line = "preempted JobId=1 has been killed to reclaim resources for JobId=2"
    (tmp_path / "slurmctld.log").write_text(f"[2026-01-01T00:00:00.000] {line}\n")
    with pytest.raises(StopIteration, match=line):
        next(asking)
    assert job.is_over()
