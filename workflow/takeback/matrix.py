"""From the blocks of an experiment to its cells: products, excludes, includes, controls."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from takeback.leg import Leg, fault_slug

DEFAULTS = {
    "backend": "gloo",
    "world": 1,
    "resume_world": "same",
    "kill_step": None,
    "point": "step",
    "fault": "sigkill",
}
SETTINGS = ("trainer", "resume_trainer")


@dataclass(frozen=True)
class Expectation:
    """What an experiment predicts for a cell, and why."""

    verdict: str
    because: str
    first_step: int | None = None
    first_state: str | None = None
    says: str | None = None


@dataclass(frozen=True)
class Cell:
    """One point of the matrix: a list of legs to compare, and what is predicted of them."""

    id: str
    control: str | None
    axes: dict[str, Any]
    reference: Leg
    twin: Leg
    killed: Leg
    resumed: Leg
    expect: Expectation
    against: str

    @property
    def legs(self) -> tuple[Leg, ...]:
        return self.reference, self.twin, self.killed, self.resumed


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def axes_of(block: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Axis → its values; the settings of the trainer become axes ``trainer.NAME``."""
    axes: dict[str, list[Any]] = {}
    for key, value in block.items():
        if key in SETTINGS:
            axes.update({f"{key}.{name}": listed(values) for name, values in value.items()})
        elif key in DEFAULTS:
            axes[key] = listed(value)
    if "fault" in axes:
        axes["fault"] = [normal_fault(fault) for fault in axes["fault"]]
    return axes


def normal_fault(fault: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": fault, "ranks": "last"} if isinstance(fault, str) else {"ranks": "last", **fault}


def product(block: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Points of a block; an axis that it doesn't name comes from ``base``, then from the defaults."""
    axes = {key: listed(value) for key, value in DEFAULTS.items()}
    axes["fault"] = [normal_fault(DEFAULTS["fault"])]
    axes |= axes_of(base or {}) | axes_of(block)
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        if point["resume_world"] == "same":
            point["resume_world"] = point["world"]
        yield point


def matches(point: Mapping[str, Any], block: Mapping[str, Any]) -> bool:
    """Whether a point (or the axes of a cell) agrees with a block in each axis that the block names.

    ``resume_world`` may be ``same`` or ``other`` (than the world of the killed run).
    """
    for axis, values in axes_of(block).items():
        found = point.get(axis)
        if axis == "fault":
            found, values = slug(found), [slug(value) for value in values]
        if axis == "resume_world" and ("same" if found == point["world"] else "other") in values:
            continue
        if found not in values:
            return False
    return True


def slug(fault: str | Mapping[str, Any]) -> str:
    return fault if isinstance(fault, str) else fault_slug(fault)


def cell_id(axes: Mapping[str, Any]) -> str:
    """Readable id: ``gloo-w4-k8@saved-r2-sigkill-resume.forget=optimizer`` in the letters of a file name."""
    point = "" if axes["point"] == DEFAULTS["point"] else f"-{axes['point']}"
    words = [
        axes["backend"],
        f"w{axes['world']}",
        f"k{axes['kill_step']}{point}",
        f"r{axes['resume_world']}",
        fault_slug(axes["fault"]),
    ]
    for axis, value in axes.items():
        prefix, dot, name = axis.partition(".")
        if dot:
            words.append(f"{'resume_' if prefix == 'resume_trainer' else ''}{name}={value}")
    return re.sub(r"[^A-Za-z0-9._=-]", "_", "-".join(words))


def cell_of(
    axes: dict[str, Any], *, trainer: dict[str, Any], expect: Expectation, control: str | None, deadline: float
) -> Cell:
    """The legs of one point: reference and its twin, the killed run, the resumed run."""
    settings = dict(trainer["settings"]) | chosen(axes, "trainer")
    world, resume_world = axes["world"], axes["resume_world"]

    def leg(world: int, extra: Mapping[str, Any] = {}, **more: Any) -> Leg:
        return Leg({**trainer, "settings": settings | extra}, axes["backend"], world, deadline=deadline, **more)

    fault = {"id": "0", **axes["fault"], "point": axes["point"], "step": axes["kill_step"], "attempt": 0}
    killed = leg(world, faults=(fault,))
    resumed = leg(resume_world, chosen(axes, "resume_trainer"), parent=killed)

    if world == resume_world:
        against, launched, extra = "same topology", world, {}
    elif settings.get("reduction", "fixed-order") == "fixed-order":
        against, launched, extra = "changed topology, fixed-order reduction", world, {}
    else:
        # The backend's own sum has other bits at another world size: compare with an undisturbed run
        # whose state is moved in memory, never through a file, at the step of the newest checkpoint.
        against, launched = "changed topology, handover control", max(world, resume_world)
        extra = {"handover": f"{world}:{newest_save(axes, settings)}:{resume_world}"}
    return Cell(
        id=cell_id(axes),
        control=control,
        axes={**axes, "fault": fault_slug(axes["fault"])},
        reference=leg(launched, extra),
        twin=leg(launched, extra, repeat=1),
        killed=killed,
        resumed=resumed,
        expect=expect,
        against=against,
    )


def chosen(axes: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {axis.partition(".")[2]: value for axis, value in axes.items() if axis.startswith(group + ".")}


def newest_save(axes: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    """Step of the newest checkpoint that is complete when the fault strikes."""
    every = settings.get("save_every", 4)
    step = axes["kill_step"] if axes["point"] == "saved" else axes["kill_step"] - 1
    return step // every * every
