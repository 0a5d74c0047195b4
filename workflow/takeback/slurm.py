"""A Slurm of this machine alone, for as long as it is needed: real daemons, some nodes, two partitions.

Nothing of it outlasts it. The daemons stay children of the process that started them; what they start in their turn
(slurmstepd and the jobs) is adopted by it, and all is ended together. Its files lie in one folder with a short name,
as the path of a socket must be. No accounting, no control groups: limits of CPU and memory are not enforced.

Sources: slurm.conf(5), munged(8), slurmctld(8), slurmd(8); Slurm 22.05 as Debian has it.
"""

from __future__ import annotations

import mmap
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from takeback.errors import SlurmError
from takeback.launchers import process
from takeback.launchers.ports import free_port

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct")
NAME = "takeback-slurm-"  # of its folder, with the process that it is for: by it leftovers are known
START = 60.0  # s until all nodes are idle: a slurmd that finds no slurmctld asks again after 1, 2, 4, 8, 16 s
ANSWER = 60.0  # s for a client's answer
#: Ways in which ranks end whose job is taken off its nodes; what became of the job, Slurm itself says.
ENDS_BY = [{"signal": 15}, {"signal": 9}, {"status": 143}, {"status": 1}]
LOW, HIGH = "low", "high"  # partitions: a job of the second takes the machine from those of the first
CONF = """\
ClusterName=takeback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job may start again once its old credential has expired.
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_wait}
CredType=cred/munge
MpiDefault=none
# A node that is set DOWN stays so.
ReturnToService=1
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdParameters=config_overrides
# So that slurmd tells how each task has ended.
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait={kill_wait}
MinJobAge=600
SlurmctldTimeout=60
SlurmdTimeout=60
InactiveLimit=0
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1"
    " CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} State=UNKNOWN\n"
)
PARTITIONS = """\
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode={preempt} GraceTime={grace}
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""


def unavailable() -> str | None:
    """Why no such Slurm can be had on this machine, or None."""
    missing = [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name) is None]
    if missing:
        return f"slurm: no {', '.join(missing)} here; install slurm-wlm and munge"
    return None if os.geteuid() == 0 else "slurm: a Slurm of one's own needs root"


class Cluster:
    """A running Slurm.

    Args:
        folder: an empty folder for all its files, whose path is short.
        nodes: how many there are: ``n0``, ``n1``, …
        cpus: of each node, whatever this machine has.
        grace: s between the notice to a job of the partition ``low`` that is preempted and its end.
        kill_wait: s from SIGTERM to SIGKILL.
        requeue_wait: s that a requeued job waits at least.
        preempt: what becomes of a job that is preempted, ``REQUEUE`` or ``CANCEL``.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        cpus: int = 8,
        grace: int = 0,
        kill_wait: int = 3,
        requeue_wait: int = 10,
        preempt: str = "REQUEUE",
    ) -> None:
        self.folder, self.conf = folder, folder / "slurm.conf"
        self.names = [f"n{number}" for number in range(nodes)]
        host = socket.gethostname().partition(".")[0]
        given = {"host": host, "folder": folder, "kill_wait": kill_wait, "requeue_wait": requeue_wait}
        machine = {"host": host, "cpus": cpus, "memory": psutil.virtual_memory().total >> 20}
        port, *ports = (free_port() for _ in range(nodes + 1))
        each = [NODE.format(name=name, port=one, **machine) for name, one in zip(self.names, ports, strict=True)]
        parts = PARTITIONS.format(preempt=preempt, grace=grace)
        self.conf.write_text(CONF.format(**given, port=port) + "".join(each) + parts)
        (folder / "state").mkdir()
        (folder / "bin").mkdir()
        for name in CLIENTS:
            # Some callers take all SLURM_* variables out of the environment of what they start.
            client = folder / "bin" / name
            client.write_text(f'#!/bin/sh\nSLURM_CONF={self.conf} exec {shutil.which(name)} "$@"\n')
            client.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which Slurm's own programs find it."""
        return {"SLURM_CONF": str(self.conf), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def start(self) -> None:
        """Start the daemons, as children that end with this process.

        Raises:
            SlurmError: a node is not idle in time; with what the daemons said last.
        """
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        munge = {"key-file": key, **{f"{name}-file": self.folder / f"munge.{name}" for name in ("pid", "log", "seed")}}
        options = [f"--{name}={path}" for name, path in munge.items()]
        self._daemon("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *options)
        until = time.monotonic() + START
        while not (self.folder / "munge.socket").exists() and time.monotonic() < until:
            time.sleep(0.02)
        self._daemon("slurmctld", "-D", "-c", "-f", str(self.conf))
        for name in self.names:
            self._daemon("slurmd", "-D", "-N", name, "-f", str(self.conf))
        while self._idle() < len(self.names):
            if time.monotonic() > until:
                raise SlurmError(f"slurm: its nodes are not ready after {START:.0f} s: {self._last_words()}")
            time.sleep(0.1)

    def _daemon(self, *words: str) -> None:
        subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            start_new_session=True,
            preexec_fn=partial(process.die_with_parent, os.getpid()),
        )

    def _idle(self) -> int:
        told = self._client("sinfo", "-h", "-N", "-p", LOW, "-o", "%T")
        return told.stdout.split().count("idle")

    def _last_words(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return " | ".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-2:])

    def _client(self, *words: str, variables: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
        # What another Slurm, in which this may run, has told its own job is not for this one.
        theirs = ("SLURM_", "SBATCH_", "SRUN_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
        environment |= {**self.environment, **variables}
        how = {"capture_output": True, "text": True, "timeout": ANSWER, "check": False}
        try:
            return subprocess.run(words, env=environment, **how)
        except subprocess.TimeoutExpired:
            raise SlurmError(f"slurm: {words[0]} had no answer in {ANSWER:.0f} s") from None

    def client(self, *words: str, variables: Mapping[str, str] = {}) -> str:
        """What one of Slurm's own programs prints; a job that it submits has ``variables`` in its environment.

        Raises:
            SlurmError: it failed; with what it said.
        """
        done = self._client(*words, variables=variables)
        if done.returncode:
            raise SlurmError(f"slurm: {words[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm tells of a job, by name: ``JobState``, ``Restarts``, ``Reason``, … (scontrol(1), show job)."""
        words = self.client("scontrol", "-o", "show", "job", number).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for a cluster, which is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix=f"{NAME}{os.getpid()}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def ending(place: Path) -> Iterator[None]:
    """In the process that starts a cluster: end all of it and its folder, whoever else may be gone by then."""
    try:
        yield
    finally:
        process.end_descendants()
        shutil.rmtree(place, ignore_errors=True)


def run(command: Sequence[str], nodes: int, cpus: int) -> int:
    """Run a command beside a Slurm of its own, which ends with it, and return its exit status.

    Raises:
        SlurmError: there is none to be had.
    """
    if reason := unavailable():
        raise SlurmError(reason)
    status = mmap.mmap(-1, 1)  # shared with the child that does the work

    def work(place: Path, bound: Sequence[int]) -> None:
        with ending(place):
            cluster = Cluster(place, nodes, cpus)
            cluster.start()
            with subprocess.Popen(command, env={**os.environ, **cluster.environment}) as child:
                if wait_for(child.pid, bound):
                    child.wait()
                else:
                    child.kill()
            status[0] = child.returncode if child.returncode >= 0 else 128 - child.returncode

    with folder() as place:
        process.guarded(partial(work, place), [])
    return status[0]


def wait_for(pid: int, bound: Sequence[int]) -> bool:
    """Wait until a child has ended, or one of the descriptors ``bound`` is readable; whether it was the child."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    for descriptor in (ended, *bound):
        poll.register(descriptor, select.POLLIN)
    found = ended in dict(poll.poll())
    os.close(ended)
    return found
