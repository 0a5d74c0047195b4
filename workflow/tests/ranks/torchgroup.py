"""Groups of real trainer processes for tests, forked from one process that has imported torch already.

Imported, it is the client: :class:`Nursery` starts groups and reads what they told. Run as a
script, it is that process: one JSON request a line on stdin, one reply a line on stdout; it
ends, and all its children with it, when stdin closes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from takeback.launchers.local import preload, wait_at
from takeback.launchers.rank import start

TRAINER = "takeback.trainers.reference"
_DEADLINE = 60  # seconds for any one wait


@dataclass
class Group:
    """One started group; ``records[rank]`` is what that rank has told through the probe."""

    nursery: Nursery
    folder: Path
    pids: list[int]

    def wait(self) -> list[int]:
        """Exit status of each rank, negative for a signal."""
        return self.nursery.ask(wait=self.pids)

    def wait_until_held(self, rank: int) -> None:
        """Return when ``rank`` has stopped itself at the point where a fault waits."""
        assert self.nursery.ask(stopped=self.pids[rank])

    def kill(self, rank: int) -> None:
        os.kill(self.pids[rank], signal.SIGKILL)

    def output(self, rank: int = 0) -> list[str]:
        return (self.folder / f"rank{rank}.txt").read_text().splitlines()

    def records(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        lines = (self.folder / f"attempt0-rank{rank}.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def losses(self, rank: int = 0) -> dict[int, int]:
        """Bits of the loss by step."""
        return {record["step"]: record["loss_bits"] for record in self.records("step", rank)}

    def digests(self, moment: str, rank: int = 0) -> dict[str, str]:
        """The last state told at ``moment``: digest by name."""
        told = [record for record in self.records("digest", rank) if record["moment"] == moment]
        return {name: digest for name, _, _, digest in told[-1]["entries"]}


class Nursery:
    """The client's end; ``close`` leaves no process behind."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(
        self,
        world: int,
        folder: Path,
        *arguments: str,
        checkpoints: list[Path] | None = None,
        target: str = TRAINER,
        held: tuple[int, str, int] | None = None,
        file_limit: int | None = None,
    ) -> Group:
        """Start ``world`` ranks of ``target``, their records and output in ``folder``.

        Args:
            arguments: of the trainer, beside ``--checkpoints`` (default ``folder/ck``).
            checkpoints: one folder a rank.
            held: (rank, point, step) at which that rank stops itself.
            file_limit: largest file in bytes that a rank may write.
        """
        folder.mkdir(parents=True, exist_ok=True)
        ranks = []
        which = [target] if target.endswith(".py") else ["-m", target]
        for rank in range(world):
            kept = checkpoints[rank] if checkpoints else folder / "ck"
            armed = (
                [{"id": "0", "point": held[1], "step": held[2], "attempt": 0, "ranks": "all"}]
                if held and held[0] == rank
                else []
            )
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "TAKEBACK_RECORDS": str(folder),
                "TAKEBACK_ONE_LIFE": "1",
                "TAKEBACK_ARMED": json.dumps(armed),
            }
            ranks.append(
                {
                    "words": [*which, "--checkpoints", str(kept), *arguments],
                    "environment": environment,
                    "output": str(folder / f"rank{rank}.txt"),
                    "file_limit": file_limit,
                }
            )
        return Group(self, folder, self.ask(start=ranks))

    def run(self, world: int, folder: Path, *arguments: str, **options: Any) -> Group:
        """Start, wait, and demand that every rank ends well."""
        group = self.start(world, folder, *arguments, **options)
        statuses = group.wait()
        assert statuses == [0] * world, [group.output(rank) for rank in range(world)]
        return group

    def ask(self, **request: Any) -> Any:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(_DEADLINE)
        self._process.stdout.close()


def _serve() -> None:
    from torch.distributed import TCPStore

    preload()  # what all ranks need: else each of them would import it
    stores, living = [], set()

    def give_up(*_: Any) -> None:
        for pid in living:
            os.kill(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, give_up)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(_DEADLINE)
        if "start" in request:
            stores[:] = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
            # Each waits until all are forked, for the reason that wait_at gives.
            gate = os.pipe()
            reply = [_fork(rank, stores[0].port, gate) for rank in request["start"]]
            for end in gate:
                os.close(end)
            living.update(reply)
        elif "stopped" in request:
            _, status = os.waitpid(request["stopped"], os.WUNTRACED)
            reply = os.WIFSTOPPED(status)
        else:
            reply = []
            for pid in request["wait"]:
                reply.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                living.discard(pid)
        signal.alarm(0)
        print(json.dumps(reply), flush=True)
    give_up()


def _fork(rank: dict[str, Any], port: int, gate: tuple[int, int]) -> int:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    enter = [partial(wait_at, gate)]
    if limit := rank["file_limit"]:
        enter.append(partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit)))
    folder, output = Path(rank["output"]).parent, Path(rank["output"])
    return start(["python", *rank["words"]], rank["environment"] | environment, folder, folder, output, enter=enter)


if __name__ == "__main__":
    _serve()
