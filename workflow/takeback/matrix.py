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
AFTER_A_SAVE = ("save.pointer", "saved")  # points of the reference trainer at which the step's checkpoint counts


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
    """Readable id, in the letters of a file name: ``gloo-w4-k8-saved-r2-sigkill-resume_forget=optimizer``."""
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
    axes: dict[str, Any],
    *,
    trainer: dict[str, Any],
    usual: Mapping[str, Any] | None,
    expect: Expectation,
    control: str | None,
    deadline: float,
) -> Cell:
    """The legs of one point: reference and its twin, the killed run, the resumed run.

    Args:
        usual: all settings of the reference trainer with the values they have if nobody sets them;
            None for a trainer whose settings nobody here knows the meaning of.
    """
    settings = dict(trainer["settings"]) | chosen(axes, "trainer")

    def leg(world: int, extra: Mapping[str, Any] = {}, **more: Any) -> Leg:
        return Leg({**trainer, "settings": settings | extra}, axes["backend"], world, deadline=deadline, **more)

    fault = {"id": "0", **axes["fault"], "point": axes["point"], "step": axes["kill_step"], "attempt": 0}
    killed = leg(axes["world"], faults=(fault,))
    against, launched, extra = reference_of(axes, usual and {**usual, **settings})
    return Cell(
        id=cell_id(axes),
        control=control,
        axes={**axes, "fault": fault_slug(axes["fault"])},
        reference=leg(launched, extra),
        twin=leg(launched, extra, repeat=1),
        killed=killed,
        resumed=leg(axes["resume_world"], chosen(axes, "resume_trainer"), parent=killed),
        expect=expect,
        against=against,
    )


def reference_of(axes: Mapping[str, Any], settings: Mapping[str, Any] | None) -> tuple[str, int, dict[str, Any]]:
    """What a cell is compared with: in words, on how many ranks, with which further settings."""
    world, resume_world = axes["world"], axes["resume_world"]
    if world == resume_world:
        return "same topology", world, {}
    if settings is None:
        return "changed topology, the trainer's own reduction", world, {}
    if settings["reduction"] == "fixed-order":
        return "changed topology, fixed-order reduction", world, {}
    # The backend's own sum has other bits at another world size: compare with an uninterrupted run whose
    # state is moved in memory, never through a file, at the step of the newest checkpoint.
    step = axes["kill_step"] if axes["point"] in AFTER_A_SAVE else axes["kill_step"] - 1
    saved = step // settings["save_every"] * settings["save_every"]
    if saved == 0:
        return "changed topology, nothing saved to hand over", resume_world, {}
    handover = {"handover": f"{world}:{saved}:{resume_world}"}
    return "changed topology, handover control", max(world, resume_world), handover


def chosen(axes: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {axis.partition(".")[2]: value for axis, value in axes.items() if axis.startswith(group + ".")}
