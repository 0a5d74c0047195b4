"""What an agent of torchrun tells in its own output: groups, workers, failures, and whom it stopped.

The lines are those of torch 2.13 with ``LOGLEVEL=INFO``, ``TORCH_LOGS=torch.distributed.elastic`` and
``--event-log-handler console``: torch/distributed/elastic/agent/server/api.py, multiprocessing/api.py,
rendezvous/dynamic_rendezvous.py. Their clock is that of the wall, without a year.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

#: glog's beginning of a line: severity, month and day, time, process.
_LINE = re.compile(r"[IWE](?P<when>\d{4} \d\d:\d\d:\d\d\.\d{6}) (?P<pid>\d+) \S+\] (?P<text>.*)")
_JOINED = re.compile(r"The node '.*' has joined round (\d+) of")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)")
_CLOSED = re.compile(r"Sending process (\d+) closing signal (\w+)|Unable to shutdown process (\d+) via")
_NEWCOMERS = re.compile(r"Detected \d+ new nodes")
_EVENT = '{"name": "torchelastic.worker.status.'


@dataclass(frozen=True)
class Started:
    """A worker: its process, its ranks, the agent's count of restarts, and the round of the rendezvous.

    The static rendezvous has no rounds, and no nodes that come: there the count is the round.
    """

    pid: int
    rank: int
    local_rank: int
    restarts: int
    round: int


@dataclass
class AgentLog:
    """What one agent told.

    Attributes:
        started: its workers, in the order of their start.
        ended: exit code (below 0: a signal) of the workers whose failure it noticed, or which succeeded, by pid.
        closed: workers that it stopped itself, by pid.
        noticed: Unix times at which it saw that its group can't go on.
    """

    started: list[Started] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    noticed: list[float] = field(default_factory=list)


def read(path: Path, year: int) -> AgentLog:
    """Read the output of one agent; what its workers print among it is passed over."""
    log, current = AgentLog(), None
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        if line.startswith(_EVENT):
            _take(json.loads(line), log, current)
        elif found := _LINE.match(line):
            text, when = found["text"], seconds(found["when"], year)
            if joined := _JOINED.match(text):
                current = int(joined[1])
            elif failed := _FAILED.match(text):
                log.ended[int(failed[2])] = int(failed[1])
                log.noticed.append(when)
            elif closed := _CLOSED.match(text):
                log.closed.add(int(closed[1] or closed[3]))
            elif _NEWCOMERS.search(text):
                log.noticed.append(when)
    return log


def _take(event: dict[str, Any], log: AgentLog, current: int | None) -> None:
    """One event of the agent's own handler; of workers there are their start, and how they stood at its end."""
    told, kind = event["metadata"], event["name"].rpartition(".")[2]
    if event["source"] != "WORKER":
        return
    if kind == "START":
        local = json.loads(told["metadata"])["local_rank"][0]
        count = told["agent_restarts"]
        number = count if current is None else current
        worker = Started(int(told["worker_id"]), told["global_rank"], local, count, number)
        log.started.append(worker)
    elif kind == "SUCCEEDED":
        log.ended[int(told["worker_id"])] = 0


def seconds(when: str, year: int) -> float:
    """``1130 02:43:51.035000`` of a year, by the clock of this machine's zone, in seconds since 1970."""
    return datetime.strptime(f"{year} {when}", "%Y %m%d %H:%M:%S.%f").astimezone().timestamp()
