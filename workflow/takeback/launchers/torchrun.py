"""torchrun, as users start it: an agent a node, all on this machine, which starts the ranks and starts them again.

The supervisor is the parent of the agents alone. It finds the workers by /proc, holds them by pidfd, and adopts those
whose agent ends (:mod:`takeback.launchers.agents`); what agents tell of groups and restarts is read from their output
when all is over (:mod:`takeback.launchers.agent_log`). Each group of workers is an attempt of the leg.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from takeback import launchers, network
from takeback.faults import Victim
from takeback.launchers import agent_log, agents, process, rank
from takeback.launchers.agents import Process
from takeback.launchers.injector import armed
from takeback.launchers.local import LOOPBACK, command, surroundings
from takeback.launchers.ports import free_port
from takeback.launchers.recorder import Recorder
from takeback.launchers.watch import Watched, at

#: ``nproc``: ranks a node, 0: all on one. ``nnodes``: MIN:MAX; as many as there are, if empty. ``rdzv``: static (what
#: torchrun takes if nothing is said), c10d or standalone; of several nodes c10d. ``rdzv_conf``: KEY=VALUE,…
#: ``ports``: own, of a network of their own. torchrun looks for a free port and lets go of it
#: (elastic.utils.distributed.get_free_port); rank 0 listens there seconds later, if no other run has been given it.
PARAMETERS = {
    "max_restarts": 0,
    "nproc": 0,
    "nnodes": "",
    "monitor_interval": 0.1,
    "rdzv": "c10d",
    "rdzv_conf": "",
    "shutdown_timeout": 30,
    "ports": "shared",
}
CHOICES = {"rdzv": ["c10d", "static", "standalone"], "ports": ["shared", "own"]}
VICTIMS = ["ranks", "agents", "nodes"]
RESTARTS = True
#: So that agents tell what they do.
TALKATIVE = {"LOGLEVEL": "INFO", "TORCH_LOGS": "torch.distributed.elastic"}
NEWCOMER = "new nodes from group_rank"
READY = "Starting elastic_operator"  # an agent is about to look for the rendezvous


def launch(spec: dict[str, Any], folder: Path, root: Path, recorder: Recorder, bound: Sequence[int] = ()) -> None:
    """Run one leg, in a process of its own: when either is killed, the other ends all agents and workers.

    Raises:
        SystemExit: whoever asked for the run is gone, or the supervisor was killed.
    """
    process.guarded(partial(run, spec, folder, root, recorder), bound)


def run(spec: dict[str, Any], folder: Path, root: Path, recorder: Recorder, bound: Sequence[int]) -> None:
    """Start the agents, watch until all processes have ended, and record what became of them."""
    if launchers.parameters(spec["launcher"])["ports"] == "own":
        network.take_own_ports()
    with ExitStack() as stack:
        nodes = spec["world"] // (launchers.parameters(spec["launcher"])["nproc"] or spec["world"])
        around = surroundings({**spec, "world": nodes}, folder, stack)
        stack.callback(process.end_descendants)  # before what surrounds them is taken away
        group = Group(spec, folder, root, recorder, around, nodes)
        group.start()
        group.watch(bound)
    group.injector.finish()
    group.record()


def words_of(spec: dict[str, Any], folder: Path, node: int, nodes: int, port: int, host: str, store: str) -> list[str]:
    """The command of one agent, on ``host``; the store is to be on the host ``store``."""
    given, program = launchers.parameters(spec["launcher"]), command(spec, folder)
    words = ["python", "-m", "torch.distributed.run", "--event-log-handler", "console"]
    words += ["--nproc-per-node", str(given["nproc"] or spec["world"]), "--nnodes", given["nnodes"] or str(nodes)]
    words += ["--max-restarts", str(given["max_restarts"]), "--monitor-interval", str(given["monitor_interval"])]
    words += [
        "--shutdown-timeout",
        str(given["shutdown_timeout"]),
        "--log-dir",
        str(folder / "stdout" / f"node-{node}"),
    ]
    conf = given["rdzv_conf"]
    if given["rdzv"] == "c10d":
        # All are on one machine: whose address is the endpoint's does not say who is to host the store.
        conf = ",".join(filter(None, [f"is_host={int(node == 0)}", conf]))
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{store}:{port}", "--rdzv-id", folder.name]
        words += [] if host == LOOPBACK else ["--local-addr", host]  # else its name, which has no address there
    elif given["rdzv"] == "static":
        words += ["--master-port", str(port)]
    else:
        words += ["--standalone"]
    if conf:
        words += ["--rdzv-conf", conf]
    if rank.runs_in_a_fork(program):
        return [*words, *program[1:]]
    return [*words, "--no-python", *program]


class Group(Watched):
    """Agents and their workers."""

    def __init__(self, *given: Any) -> None:
        """As of the base."""
        super().__init__(*given)
        self.port = free_port()
        self.agents: list[Process] = []

    def output(self, node: int) -> Path:
        return self.folder / "stdout" / f"node-{node}.txt"

    def start(self) -> None:
        """Start the agents; the store's host last, when the others wait for it, so that all are in the first group."""
        for node in reversed(range(self.nodes)):
            self.start_agent(node)
            while node == 1 and not all(READY in self.told(one) for one in range(1, self.nodes)):
                if self.left() <= 0 or any(not process.is_there(agent.pid) for agent in self.agents):
                    break  # the watch will say so
                time.sleep(0.05)

    def told(self, node: int) -> str:
        path = self.output(node)
        return path.read_text(errors="replace") if path.exists() else ""

    def start_agent(self, node: int) -> Process:
        environment = {
            **TALKATIVE,
            **self.spec["launcher"].get("environment", {}),
            "TAKEBACK_RECORDS": str(self.folder / "records"),
            "TAKEBACK_ARMED": armed(self.spec["faults"]),
        }
        for surrounding in self.around.values():
            environment |= surrounding.variables(node)
        enter = [partial(surrounding.enter, node) for surrounding in self.around.values()]
        words = words_of(self.spec, self.folder, node, self.nodes, self.port, self.host(node), self.host(0))
        pid = rank.start(words, environment, self.folder, self.root, self.output(node), afresh=True, enter=enter)
        agent = Process(Victim(None, pid, os.pidfd_open(pid), node), time.monotonic())
        self.agents.append(agent)
        self.processes[pid] = agent
        self.recorder("agent_launched", attempt=0, of_agent=node, of_pid=pid)
        return agent

    def arrive(self, seen: dict[str, Any]) -> Iterator[float]:
        """One more node; yields seconds to wait until those that are there have noticed it."""
        node = len(self.agents)
        self.start_agent(node)
        seen["node"] = node
        while not any(NEWCOMER in self.told(old) for old in range(node)):
            yield 0.25
        seen["arrived"] = True

    def look_for_workers(self) -> None:
        for agent in self.agents:
            if agent.ended is None:
                for worker in agents.workers_of(agent.pid, self.processes.keys(), agent.node):
                    self.processes[worker.pid] = worker

    def record(self) -> None:
        """What became of all processes: groups and ranks as the agents told them, ends as the kernel did."""
        logs = [agent_log.read(self.output(agent.node), datetime.now().year) for agent in self.agents]
        rounds = sorted({worker.round for log in logs for worker in log.started})
        for agent, log in zip(self.agents, logs, strict=True):
            for worker in log.started:
                if one := self.processes.get(worker.pid):
                    self.record_worker(one, worker, rounds.index(worker.round), log)
            for when in log.noticed:
                self.recorder("launcher_noticed", of_agent=agent.node, **at(when - time.time() + time.monotonic()))
            who = {"of_agent": agent.node, "of_pid": agent.pid}
            self.recorder(
                "agent_exited", **who, **agent.how(), by=self.by(agent, agent.pid in log.closed), **at(agent.ended)
            )

    def record_worker(self, one: Process, told: agent_log.Started, attempt: int, log: agent_log.AgentLog) -> None:
        if one.known == "nobody" and one.pid in log.ended:
            one.told(log.ended[one.pid])
            one.known = "agent"
        more = {"local_rank": told.local_rank, "restarts": told.restarts, "by": self.by(one, one.pid in log.closed)}
        self.record_rank(one, told.rank, attempt, one.node, one.ended, **more)
