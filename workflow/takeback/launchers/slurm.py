"""Slurm, as users start a run on it: a batch job of which srun starts the ranks, and which Slurm requeues.

The cluster is one of this leg alone (:mod:`takeback.slurm`), so that a fault can ask it for whatever Slurm does to a
job, and its daemons' own logs are the receipts. The job keeps its number when it is requeued; each of its starts is an
attempt of the leg. Ranks are found by /proc, below their slurmstepd, and held by pidfd.

Source: sbatch(1), ``--requeue`` and SLURM_RESTART_COUNT; slurm.conf(5), PreemptMode and KillWait.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from takeback import launchers, slurm
from takeback.faults import Victim
from takeback.launchers import agents, process, rank, slurm_log
from takeback.launchers.agents import Process
from takeback.launchers.injector import armed
from takeback.launchers.local import command, surroundings
from takeback.launchers.recorder import Recorder
from takeback.launchers.watch import Watched, at

#: ``nproc``: ranks a node, 0: all on one. ``spare``: nodes beside those. ``max_restarts``: requeues after which the job
#: gives up by itself; Slurm itself knows no such limit. ``kill_wait``: s from SIGTERM to SIGKILL (KillWait). ``grace``:
#: s before that in which a preempted job is told alone (GraceTime). ``preempt``: PreemptMode.
PARAMETERS = {"nproc": 0, "spare": 0, "max_restarts": 0, "kill_wait": 5, "grace": 0, "preempt": "requeue"}
CHOICES = {"preempt": ["requeue", "cancel"]}
VICTIMS = ["ranks"]
OFFERS = ["scheduler"]
#: Ranks are started by Slurm: what a fault puts around them they do not enter.
FAULTS = ["sigkill", "sigterm", "sigstop", "pause", "exit", "exception", "segfault", "corrupt", "slurm_preempt",
          "slurm_requeue", "slurm_node_down"]  # fmt: skip
RESTARTS = True
unavailable = slurm.unavailable

REQUEUE_WAIT = 5  # s that a requeued job waits at least; 120 in a Slurm whose cred_expire nobody sets
LOOK = 0.5  # s between two questions for the state of the job while no rank is there
ANSWER = 10.0  # s for slurmctld to say what became of a request; a job that ended by itself gets no word
#: States of a job that will run, again or still (squeue(1), JOB STATE CODES).
GOES_ON = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "RESIZING", "SUSPENDED")
SCRIPT = """\
#!/bin/bash
[ "${{SLURM_RESTART_COUNT:-0}}" -le {max_restarts} ] || exit 75
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$({python} -m takeback.launchers.ports)
export WORLD_SIZE=$SLURM_NTASKS TORCHELASTIC_RESTART_COUNT=${{SLURM_RESTART_COUNT:-0}}
srun --kill-on-bad-exit=1 --open-mode=append --output={output} \\
    bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec "$@"' rank {words}
"""


def launch(spec: dict[str, Any], folder: Path, root: Path, recorder: Recorder, bound: Sequence[int] = ()) -> None:
    """Run one leg, in a process of its own: when either is killed, the other ends daemons, job and ranks.

    Raises:
        SystemExit: whoever asked for the run is gone, or the supervisor was killed.
    """
    with slurm.folder() as place:
        process.guarded(partial(run, spec, folder, root, recorder, place), bound)


def run(spec: dict[str, Any], folder: Path, root: Path, recorder: Recorder, place: Path, bound: Sequence[int]) -> None:
    """Start a cluster, submit the job, watch until it is over, and record what became of it."""
    given = launchers.parameters(spec["launcher"])
    nodes = spec["world"] // (given["nproc"] or spec["world"])
    cluster = slurm.Cluster(
        place,
        nodes + given["spare"],
        cpus=max(8, spec["world"]),
        grace=given["grace"],
        kill_wait=given["kill_wait"],
        requeue_wait=REQUEUE_WAIT,
        preempt=given["preempt"].upper(),
    )
    with ExitStack() as stack:
        around = surroundings(spec, folder, stack)
        stack.enter_context(slurm.ending(place))  # before what surrounds it is taken away
        cluster.start()
        job = Job(cluster, spec, folder, root, recorder, around, nodes)
        job.submit(given["max_restarts"])
        job.watch(bound)
        job.record()
    job.injector.finish()


class Job(Watched):
    """The batch job and its ranks; faults ask it for the scheduler.

    Attributes:
        cluster: where it runs.
        number: its id there.
    """

    def __init__(self, cluster: slurm.Cluster, *given: Any) -> None:
        """As of the base, on a running ``cluster``."""
        super().__init__(*given)
        self.cluster, self.number, self.asked = cluster, "", 0.0
        self.answer_by = 0.0  # s of the monotonic clock: until then slurmctld is to say what a fault has asked for
        self.words = rank.placed(command(self.spec, self.folder), self.root)

    def submit(self, max_restarts: int) -> None:
        script, output = self.folder / "stdout" / "job.sh", self.folder / "stdout"
        filled = {"python": sys.executable, "output": shlex.quote(f"{output}/rank-%t.txt")}
        script.write_text(SCRIPT.format(max_restarts=max_restarts, words=shlex.join(self.words), **filled))
        size = ["-N", str(self.nodes), "-n", str(self.spec["world"])]
        size += ["--ntasks-per-node", str(self.spec["world"] // self.nodes)]
        how = ["--requeue", "--open-mode=append", "--output", str(output / "job.txt"), "--chdir", str(self.folder)]
        variables = {
            **self.spec["launcher"].get("environment", {}),
            "TAKEBACK_RECORDS": str(self.folder / "records"),
            "TAKEBACK_ARMED": armed(self.spec["faults"]),
        }
        for surrounding in self.around.values():
            variables |= surrounding.variables(0)
        words = ["sbatch", "--parsable", "-p", slurm.LOW, *size, *how, str(script)]
        self.number = self.cluster.client(*words, variables=variables)
        self.recorder("agent_launched", attempt=0, of_agent=0, of_pid=os.getpid(), job=self.number)

    def told(self, word: str, after: int = 0) -> list[str]:
        """The lines in which slurmctld says that the job was taken off its nodes, with ``word`` in them.

        Args:
            after: how many there were before: what a fault did is told by those that came since.
        """
        return [line for _, line in self._account().taken if word in line][after:]

    def asked_to_go(self, word: str, *client: str) -> Generator[float, None, str]:
        """Let a client of Slurm's ask for something, and wait until slurmctld says, after that, what became of the job.

        Args:
            word: of the line that says so, which is returned. That a job has GraceTime from now on stands in no log:
                then it is the instant that scontrol(1) tells, PreemptTime.
        """
        before, earlier = len(self.told(word)), self._preempted()
        self.cluster.client(*client)
        self.answer_by = time.monotonic() + ANSWER
        while not (lines := self.told(word, after=before)):
            if (when := self._preempted()) not in (earlier, "None"):
                lines = [f"PreemptTime={when}"]
                break
            yield 0.2
        self.answer_by = 0.0
        return lines[-1]

    def _preempted(self) -> str:
        """Since when GraceTime runs, or ran last; nothing at a site without."""
        grace = launchers.parameters(self.spec["launcher"])["grace"]
        return self.cluster.job(self.number)["PreemptTime"] if grace else ""

    def _account(self) -> slurm_log.Account:
        return slurm_log.account(self.cluster.folder / "slurmctld.log", self.number)

    def look_for_workers(self) -> None:
        """Ranks are children of slurmstepd, which slurmd leaves to the next that adopts: to us."""
        for stepd in agents.children_of(os.getpid()):
            for worker in agents.workers_of(stepd, self.processes.keys(), node=0):
                self.processes[worker.pid] = worker

    def is_over(self) -> bool:
        if time.monotonic() < max(self.asked + LOOK, self.answer_by):  # a job may end before its receipt is read
            return False
        self.asked = time.monotonic()
        return self.cluster.job(self.number)["JobState"] not in GOES_ON

    def record(self) -> None:
        """What became of all ranks, as Slurm told it; how they ended, as the kernel did where it can."""
        for log in self.cluster.folder.glob("slurm*.log"):
            shutil.copy(log, self.folder / "stdout")
        account = self._account()
        for number, name in enumerate(self.cluster.names):
            for task in slurm_log.tasks(self.cluster.folder / f"slurmd.{name}.log", self.number, number):
                attempt = max(0, sum(when <= task.began for when in account.allocated) - 1)
                self._record_task(task, attempt)
        shift = time.monotonic() - time.time()
        for when, line in account.taken:
            self.recorder("launcher_noticed", of_agent=0, says=line, **at(when + shift))
        told = self.cluster.job(self.number)
        status, signal = (int(code) for code in told["ExitCode"].split(":"))
        how = {"status": None if signal else status, "signal": signal or None, "state": told["JobState"]}
        by = "supervisor" if self.ended_by_us else "itself"
        self.recorder("agent_exited", of_agent=0, of_pid=os.getpid(), **how, known="agent", by=by)

    def _record_task(self, task: slurm_log.Task, attempt: int) -> None:
        shift = time.monotonic() - time.time()
        one = self.processes.get(task.pid)
        if one is None:  # it had ended before it was seen
            one = Process(
                Victim(task.rank, task.pid, -1), task.began + shift, self.spec["world"], attempt, tuple(self.words)
            )
        if one.known == "nobody" and task.code is not None:
            one.told(task.code)
            one.known = "agent"
        ended = one.ended if one.ended is not None else (task.ended or time.time()) + shift
        local_rank, by = task.rank % (self.spec["world"] // self.nodes), self.by(one, task.signalled)
        self.record_rank(one, task.rank, attempt, task.node, ended, by, local_rank=local_rank, restarts=attempt)
