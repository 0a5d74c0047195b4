"""One host as its supervisor sees it: the command that runs there, what it has told, what is left of it."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from takeback.launchers import local, process, wire
from takeback.launchers.recorder import Recorder

PATIENCE = 5.0  # s for a host to end when nobody speaks to it any more


class Host:
    """One host as the supervisor sees it.

    Attributes:
        told: the last of its messages of each kind.
        ear, unsaid: descriptor of its stdin, and what has not been written there yet.
        alive: its ranks that have not ended.
        idle: whether nobody is left there but those whom a fault has stopped for good.
        cut: whether its link has been cut.
        over: whether it has sent all, or is lost.
        offset: seconds by which our monotonic clock is ahead of its own.
        flaw: what was wrong with what it sent, if anything.
    """

    def __init__(self, node: int, name: str, ranks: list[int], words: list[str], errors: Path) -> None:
        self.node, self.name, self.ranks, self.errors = node, name, ranks, errors
        self.told: dict[str, Any] = {}
        self.alive: set[int] = set()
        self.idle = self.cut = self.over = False
        self.offset, self.flaw = 0.0, ""
        bind = partial(process.die_with_parent, os.getpid())
        with errors.open("wb") as file:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file}
            self.command = subprocess.Popen(words, bufsize=0, start_new_session=True, preexec_fn=bind, **pipes)
        self.ear, self.unsaid = self.command.stdin.fileno(), b""
        os.set_blocking(self.ear, False)
        self.lines = wire.Lines(self.command.stdout.fileno())
        self.records = wire.Lines(self.lines.descriptor)  # its own, piece by piece

    def tell(self, **order: Any) -> None:
        """Say something, now or when it listens: one that does not must hold nobody up. To a lost one, nothing."""
        self.unsaid += wire.line(order)
        self.say()

    def say(self) -> None:
        """What it takes now of what has not been said."""
        try:
            self.unsaid = self.unsaid[os.write(self.ear, self.unsaid) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # its stdout ends too, and that is seen
            self.unsaid = b""

    def differs(self, own: dict[str, str]) -> str:
        """In what it is not as this machine, if it is in anything."""
        there = self.told["hello"]["same"]
        return "; ".join(f"{name}: {there.get(name)}, here {own[name]}" for name in own if there.get(name) != own[name])

    def why(self) -> str:
        """Why it is over: its last words, or those of what should run commands there."""
        if self.flaw:
            return self.flaw
        lines = [line for line in self.errors.read_text(errors="replace").splitlines() if line.strip()]
        return " ".join(lines[-1].split()) if lines else "no error was told"

    def close(self) -> None:
        """Say no more: it ends its ranks, if any are left, and itself."""
        self.command.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.command.wait(PATIENCE)
        self.command.kill()
        self.command.wait()
        self.command.stdout.close()

    def end(self, folder: Path, recorder: Recorder) -> None:
        """Tell how its command ended; its records by our clock, where its own is another."""
        self.close()
        status = self.command.returncode
        how = {"status": status, "signal": None} if status >= 0 else {"status": None, "signal": -status}
        who = {"attempt": local.ATTEMPT, "of_agent": self.node, "of_pid": self.told["hello"]["pid"]}
        recorder("agent_exited", **who, **how, known="kernel", by="itself")
        if self.offset:
            names = [f"host-{self.node}", *(f"attempt{local.ATTEMPT}-rank{number}" for number in self.ranks)]
            for name in names:
                if (path := folder / "records" / f"{name}.jsonl").exists():
                    wire.by_our_clock(path, self.offset)
