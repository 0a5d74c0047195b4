"""Faults: one small file each. Adding one is adding one file here and a line of YAML.

A fault module has

``ENDS_BY: list[dict]``
    The ways in which a victim may end by it, such as ``[{"signal": 9}]`` or ``[{"status": 7}]``; empty if it
    ends nobody. They go into the receipt, by which the exits of the victims are judged.
``PARAMETERS: dict``, if it has any
    Their names and usual values, as a literal: an experiment names others under ``with``.
``CHOICES: dict[str, list]``, if only some values of a parameter make sense
    What these are.
``RANKS: str``, if it can't strike some ranks and spare others
    ``all``.
``NEEDS: str``, if not every launcher can have it
    What the launcher must have: ``nodes``, ``scheduler``.
``OF_FILES: bool``, if true
    It strikes files or the disk of the checkpoints, which are to be in a folder.
``PROVES: dict``, if its victims need not end
    What must have been seen after the strike, such as ``{"state": "stopped"}``, by name: a fault that left no
    trace has not struck.
``EACH: bool``, if true
    Each victim is struck when it comes by the point itself; else all of them with the first that does.
``KILLS: bool``, if true
    It kills at once: where victims are on several hosts, none of them may see the end of another before it is struck.
``strike(injection) -> None | Iterator[float]``
    Strike. As a generator it yields seconds to wait, and goes on after them: a notice, and the end of its grace.
``act(**parameters)``, if it has one
    What a victim does to itself once it is let go, in the victim's own process: standard library only.
``surround(fault, folder, world)``, if it needs one
    A context manager around the whole run: a file system of its own, a network. It gives :class:`Surroundings`.
``unavailable() -> str | None``, if it needs root or something of the kernel
    Why it can't be had here.

A fault never judges, and it writes nothing of what it did: the supervisor records it before and after.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any


class Surroundings:
    """What a fault has put around the ranks of a run. This one: nothing."""

    def variables(self, rank: int) -> dict[str, str]:
        """Further environment of one rank."""
        return {}

    def enter(self, rank: int) -> None:
        """Called in the process of the rank, before its program starts."""


@dataclass(frozen=True)
class Victim:
    """A process to strike, and a pidfd: by its number alone one could strike a stranger who got it later.

    Attributes:
        rank: its rank; None for an agent of a launcher.
        node: number of the host on which it runs, where hosts are told apart; else its rank.
    """

    rank: int | None
    pid: int
    descriptor: int
    node: int = 0

    def send(self, number: int) -> None:
        """Send a signal; to a process that has ended already, nothing."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def let_go(self) -> None:
        """Let it go on from the point at which it holds itself."""
        self.send(signal.SIGCONT)


@dataclass
class Injection:
    """One fault as it strikes.

    Attributes:
        fault: the leg's own mapping: ``kind``, ``ranks``, ``point``, ``step``, …
        victims: the processes that it strikes; those that hold themselves go on only if the fault lets them.
        folder: the leg's folder, with ``checkpoints`` in it.
        around: what its own ``surround`` gave.
        everyone: all ranks that have not ended.
        launcher: the launcher's own object, of which a fault with ``NEEDS`` asks what it needs; else None.
        seen: what the fault saw of its own effect; goes into the receipt, and is measured by ``PROVES``.
    """

    fault: dict[str, Any]
    victims: list[Victim]
    folder: Path
    around: Surroundings
    everyone: list[Victim]
    seen: dict[str, Any] = field(default_factory=dict)
    launcher: Any = None

    @property
    def parameters(self) -> dict[str, Any]:
        """The fault's parameters, the usual values included."""
        return parameters(self.fault)

    @property
    def checkpoints(self) -> Path:
        """Where the run keeps its checkpoints."""
        return self.folder / "checkpoints"

    def send(self, number: int) -> None:
        """Send a signal to every victim."""
        for victim in self.victims:
            victim.send(number)

    def stop(self, some: Sequence[Victim] | None = None) -> bool:
        """Stop every victim, or these; whether the kernel says that all of them are."""
        from takeback.launchers.process import wait_until_stopped  # not in a rank, which has the standard library only

        victims = self.victims if some is None else some
        for victim in victims:
            victim.send(signal.SIGSTOP)
        stopped = [wait_until_stopped(victim.pid) for victim in victims]
        return all(stopped)

    def kill(self) -> None:
        """SIGKILL to every victim; none sees the end of another and ends by itself: all but one are stopped before.

        The lowest rank, in most runs the one that saves, is cut off wherever it is: who is stopped finishes a write(2).
        """
        others = sorted(self.victims, key=lambda one: (one.rank is None, one.rank or 0))[1:]
        self.stop(others)
        self.send(signal.SIGKILL)

    def let_go(self) -> None:
        """Let every victim go on."""
        for victim in self.victims:
            victim.let_go()


def get(kind: str) -> ModuleType:
    """The fault in ``takeback/faults/<kind>.py``."""
    return importlib.import_module(f"takeback.faults.{kind}")


def parameters(fault: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a planned fault, the usual values included."""
    return {**getattr(get(fault["kind"]), "PARAMETERS", {}), **fault.get("with", {})}


def unavailable(planned: list[dict[str, Any]]) -> str | None:
    """Why the planned faults can't be had on this machine, or None."""
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    reasons = (getattr(get(fault["kind"]), "unavailable", nothing)() for fault in planned)
    return next(filter(None, reasons), None)
