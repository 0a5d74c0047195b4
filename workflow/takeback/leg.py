"""The leg: one launch from one parent leg or from nothing, named by all that determines it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from takeback import backends


def canonical(value: Any) -> str:
    """JSON text that is the same for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any, length: int = 10) -> str:
    """Hex digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


#: The hardware of a leg that names none: one thread, and the kernels that torch chooses for this machine.
USUAL_HARDWARE = {"threads": 1}
#: The launcher that a leg has unless it says otherwise.
LOCAL = "local"


@dataclass(frozen=True, eq=False)
class Leg:
    """The unit of work. Two legs with the same :attr:`id` are the same run, in any experiment.

    Attributes:
        trainer: ``command`` (words), ``settings`` and, for files named in the command, ``sources`` (their digest).
        backend: name of a module in ``takeback.backends``.
        world: number of ranks. Where a process has several devices it is that of devices, and ``processes`` in
            :attr:`spec` says how many processes, which are then what is called ranks, have them.
        faults: what strikes, each a mapping ``id, kind, point, step, attempt`` and its victims (``ranks``, ``agents``
            or ``nodes``), with ``with`` (its parameters), ``seconds``, ``pause`` and ``try`` where it has them.
        parent: the leg whose checkpoints this one starts from.
        repeat: 1 for the second of two equal runs (repeatability), whose first rank starts from nothing; else 0.
        deadline: seconds after which an attempt counts as hung.
        notice: seconds that the ranks have to notice a fault once it has struck; None: until the deadline.
        launcher: a module in ``takeback.launchers``: its name, or a mapping ``kind, with, environment``.
        hardware: settings that change kernels: ``threads`` of a rank and, if named, ``capability`` (``default``,
            ``avx2``, ``avx512``), the build of torch's own CPU kernels.
    """

    trainer: dict[str, Any]
    backend: str
    world: int
    faults: tuple[dict[str, Any], ...] = ()
    parent: Leg | None = None
    repeat: int = 0
    deadline: float = 120.0
    notice: float | None = None
    launcher: str | dict[str, Any] = LOCAL
    hardware: dict[str, Any] = field(default_factory=lambda: dict(USUAL_HARDWARE))

    @cached_property
    def spec(self) -> dict[str, Any]:
        """All that determines the run, as it is written to ``leg.json``."""
        return {
            "trainer": self.trainer,
            "backend": self.backend,
            "world": self.world,
            **({"processes": many} if (many := backends.processes(self.backend, self.world)) != self.world else {}),
            "launcher": self.launcher,
            "hardware": self.hardware,
            "faults": list(self.faults),
            "parent": self.parent.id if self.parent else None,
            "repeat": self.repeat,
            "deadline": self.deadline,
            **({"notice": self.notice} if self.notice is not None else {}),
        }

    @property
    def spec_json(self) -> str:
        """:attr:`spec` as the one line that a job is given."""
        return canonical(self.spec)

    @cached_property
    def id(self) -> str:
        """Name of the leg's folder: readable, and unique by a digest of :attr:`spec`."""
        return f"{self.label}-{digest(self.spec)}"

    @property
    def environment(self) -> str | None:
        """Name of the environment in which it runs, if it can't be that of the suite (:mod:`takeback.environments`)."""
        return backends.get(self.backend).ENVIRONMENT

    @property
    def label(self) -> str:
        """Readable part of the id, such as ``kill-gloo-w4-k6-sigkill``."""
        if self.faults:
            step = self.faults[0]["step"] or 0
            words = ["kill", self.backend, f"w{self.world}", f"k{step}", faults_slug(self.faults)]
            words += [] if self.launcher == LOCAL else [launcher_of(self.launcher)]
        elif self.parent:
            words = ["resume", self.backend, f"w{self.parent.world}to{self.world}"]
        else:
            words = ["twin" if self.repeat else "reference", self.backend, f"w{self.world}"]
        if self.hardware != USUAL_HARDWARE:
            words.append(hardware_slug(self.hardware))
        return "-".join(words)


def processes_of(spec: Mapping[str, Any]) -> int:
    """How many processes a leg has, by its specification: one a rank, unless it says otherwise."""
    return spec.get("processes", spec["world"])


#: Points that no rank comes by: the supervisor knows when.
ANYWHERE = ("time", "random", "end")


#: Whom a fault can strike: ranks; the launcher's agents, one a node; or nodes, which are agents with their ranks.
VICTIMS = ("ranks", "agents", "nodes")


def whom(fault: Mapping[str, Any]) -> str:
    """Which of :data:`VICTIMS` a fault names."""
    return next(kind for kind in VICTIMS if kind in fault)


def victims_of(fault: Mapping[str, Any], count: int) -> list[int]:
    """The numbers of those whom a fault strikes, where there are ``count`` of their kind."""
    given = fault[whom(fault)]
    named = {"last": [count - 1], "all": list(range(count))}
    return named[given] if isinstance(given, str) else given


def launcher_of(launcher: str | Mapping[str, Any]) -> str:
    """Name of a launcher's module."""
    return launcher if isinstance(launcher, str) else launcher["kind"]


def launcher_slug(launcher: str | Mapping[str, Any]) -> str:
    """``torchrun-max_restarts=2-NAME=1``: a launcher's name, parameters and environment in a name."""
    if isinstance(launcher, str):
        return launcher
    given = {**launcher.get("with", {}), **launcher.get("environment", {})}
    return "-".join([launcher["kind"], *(f"{name}={value}" for name, value in given.items())])


def hardware_slug(hardware: Mapping[str, Any]) -> str:
    """``avx2-t1``, ``default``, ``t2``: settings of the hardware in a name."""
    threads = (f"t{hardware['threads']}",) if "threads" in hardware else ()
    return "-".join((*filter(None, (hardware.get("capability"),)), *threads))


def faults_slug(faults: Sequence[Mapping[str, Any]]) -> str:
    """Name of all that strikes a leg: ``sigkill``, ``sigkill-all+flip_bit``."""
    return "+".join(fault_slug(fault) for fault in faults)


def fault_slug(fault: Mapping[str, Any]) -> str:
    """``sigkill``, ``sigkill-all``, ``sigterm-r0r2-grace=1.0``: a fault's kind, victims and parameters in a name."""
    words, kind = [fault["kind"]], next((kind for kind in VICTIMS if kind in fault), "ranks")
    given = fault.get(kind, "last")
    if (kind, given) != ("ranks", "last"):
        words.append(given if isinstance(given, str) else "".join(f"{kind[0]}{number}" for number in given))
        words += [kind] if isinstance(given, str) and kind != "ranks" else []
    if fault.get("attempt"):
        words.append(f"attempt{fault['attempt']}")
    if "seconds" in fault:
        words.append(f"{fault['seconds']}s")
    words += [f"{name}={value}" for name, value in fault.get("with", {}).items()]
    return "-".join(words)
