"""From the blocks of an experiment to its cells: products, excludes, includes, controls."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from takeback.against import reference_of
from takeback.leg import LOCAL, USUAL_HARDWARE, VICTIMS, Leg, canonical, faults_slug, hardware_slug, launcher_slug

DEFAULTS = {
    "backend": "gloo",
    "world": 1,
    "resume_world": "same",
    "kill_step": None,
    "point": "step",
    "fault": "sigkill",
    "launcher": LOCAL,
    "resume_by": "leg",
    "try": None,
    "then": None,
    "reference": None,
    "hardware": None,
    "resume_hardware": None,
}
SETTINGS = ("trainer", "resume_trainer")
#: Axes of settings of the hardware, and what a cell has that names none where others do.
HARDWARE = {"hardware": "usual", "resume_hardware": "same"}
QUIET = ("try", "then", "launcher", "resume_by", *HARDWARE)  # axes that a cell shows only where they are not as usual
HIDDEN = ("reference",)  # what a cell is compared with is said by ``against``
#: On these the instant of a random fault does not depend.
NOT_DRAWN = (*HARDWARE, *HIDDEN, "launcher", "resume_by")
RANDOM = "random"  # the point: any instruction, within two steps' time from the kill step
LATEST = 4  # steps before the end at which a random fault is planned at the latest: it must find the run alive


@dataclass(frozen=True)
class Expectation:
    """What an experiment predicts for a cell, and why."""

    verdict: str
    because: str
    first_step: int | None = None
    first_state: str | None = None
    says: str | None = None
    restored: int | None = None
    sees: str | None = None
    max_ulp: int | None = None
    max_first_ulp: int | None = None
    min_ulp: int | None = None
    or_verdict: Sequence[str] = ()


@dataclass(frozen=True)
class Cell:
    """One point of the matrix: a list of legs to compare, and what is predicted of them.

    ``original`` is, beside a reference that changes its topology itself, the run that stays on the killed one's.
    ``lives`` are the legs of the run that is killed, each the parent of the next; the last one is not struck, unless
    its launcher is to start the run again (``resume_by: launcher``): then it is that one leg, with several attempts.
    """

    id: str
    control: str | None
    axes: dict[str, Any]
    reference: Leg
    twin: Leg
    lives: tuple[Leg, ...]
    expect: Expectation
    against: str
    original: Leg | None = None

    @property
    def killed(self) -> Leg:
        """The first life."""
        return self.lives[0]

    @property
    def resumed(self) -> Leg:
        """The last life."""
        return self.lives[-1]

    @property
    def legs(self) -> tuple[Leg, ...]:
        return self.reference, self.twin, *self.lives, *([self.original] if self.original else [])


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def axes_of(block: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Axis → its values; the settings of the trainer become axes ``trainer.NAME``."""
    axes: dict[str, list[Any]] = {}
    for key, value in block.items():
        if key in SETTINGS:
            axes.update({f"{key}.{name}": listed(values) for name, values in value.items()})
        elif key == "tries":
            axes["try"] = list(range(1, value + 1))
        elif key == "then":
            axes["then"] = [value]  # a list of lives is one value
        elif key == "reference":
            axes["reference"] = [None if value == "own" else value]
        elif key in DEFAULTS:
            axes[key] = listed(value)
    if "fault" in axes:
        axes["fault"] = [normal_faults(fault) for fault in axes["fault"]]
    if "launcher" in axes:
        axes["launcher"] = [normal_launcher(launcher) for launcher in axes["launcher"]]
    return axes


def normal_launcher(given: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """A launcher as a mapping, but for the usual one."""
    return {"kind": given} if isinstance(given, str) and given != LOCAL else given


def normal_faults(given: str | Mapping[str, Any] | list[Any]) -> list[dict[str, Any]]:
    """All that strikes one leg: a fault by its name, as a mapping, or a list of such."""
    named = ({"kind": fault} if isinstance(fault, str) else fault for fault in listed(given))
    return [fault if any(kind in fault for kind in VICTIMS) else {"ranks": "last", **fault} for fault in named]


def slug_of(axis: str, value: Any) -> Any:
    """The value of an axis as cells show it: a name in place of a mapping."""
    if axis == "launcher":
        return launcher_slug(value)
    if axis in HARDWARE:
        return hardware_slug(value) if isinstance(value, Mapping) else value
    return faults_slug(value) if axis == "fault" and not isinstance(value, str) else value


def product(block: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Points of a block; an axis that it doesn't name comes from ``base``, then from the defaults."""
    axes = {key: listed(value) for key, value in DEFAULTS.items()}
    axes["fault"] = [normal_faults(DEFAULTS["fault"])]
    axes |= axes_of(base or {}) | axes_of(block)
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        if point["resume_world"] == "same":
            worlds = [point["world"], *(life["world"] for life in point["then"] or [] if "world" in life)]
            point["resume_world"] = worlds[-1]
        yield point


def matches(point: Mapping[str, Any], block: Mapping[str, Any]) -> bool:
    """Whether a point (or the axes of a cell) agrees with a block in each axis that the block names.

    ``resume_world`` may be ``same`` or ``other`` (than the world of the killed run).
    """
    for axis, values in axes_of(block).items():
        found = point.get(axis, DEFAULTS.get(axis))
        if axis in ("fault", "launcher", *HARDWARE):
            found, values = slug_of(axis, found), [slug_of(axis, value) for value in values]
        if axis == "resume_world" and ("same" if found == point["world"] else "other") in values:
            continue
        if found not in values:
            return False
    return True


def cell_id(axes: Mapping[str, Any]) -> str:
    """Readable id, in the letters of a file name: ``gloo-w4-k8-saved-r2-sigkill-resume_forget=optimizer``."""
    point = "" if axes["point"] == DEFAULTS["point"] else f"-{axes['point']}"
    words = [
        axes["backend"],
        f"w{axes['world']}",
        f"k{axes['kill_step']}{point}",
        f"r{axes['resume_world']}",
        faults_slug(axes["fault"]),
    ]
    for life in axes.get("then") or []:
        words += ["then", *lives_words(life)]
    if axes["launcher"] != LOCAL:
        words += [launcher_slug(axes["launcher"]), f"by_{axes['resume_by']}"]
    if axes.get("try"):
        words.append(f"try{axes['try']}")
    words += [f"{axis}={hardware_slug(axes[axis])}" for axis in HARDWARE if axes.get(axis)]
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
    neutral: Sequence[str] = (),
    expect: Expectation,
    control: str | None,
    deadline: float,
    notice: float | None = None,
    every_leg: bool = False,
) -> Cell:
    """The legs of one point: reference and its twin, the killed run, the resumed run.

    Args:
        usual: all settings of the reference trainer with the values they have if nobody sets them;
            None for a trainer whose settings nobody here knows the meaning of.
        neutral: its settings that must not change a bit of an undisturbed run: where an axis names one, the reference
            leaves it as it is in all other cells. So cells share it, and a setting that does change a bit shows.
        every_leg: whether all legs are started by the launcher of the one that is killed; else the others are by local.
    """
    given = trainer["settings"]
    settings = given | unusual(axes, "trainer", {**(usual or {}), **given})
    resumes = settings | unusual(axes, "resume_trainer", {**(usual or {}), **settings})

    def leg(world: int, settings: dict[str, Any], seconds: float = deadline, **more: Any) -> Leg:
        return Leg({**trainer, "settings": settings}, axes["backend"], world, deadline=seconds, **more)

    launcher = {"launcher": axes["launcher"]}
    first = {"hardware": USUAL_HARDWARE | (axes["hardware"] or {}), **(launcher if every_leg else {})}
    other = first | {"hardware": first["hardware"] | (axes["resume_hardware"] or {})}
    lives = [leg(axes["world"], settings, faults=planned(axes, axes), notice=notice, **first | launcher)]
    for life in axes["then"] or []:
        world = life.get("world", lives[-1].world)
        lives.append(leg(world, resumes, faults=planned(life, axes), parent=lives[-1], notice=notice, **other))
    if axes["resume_by"] == "leg":
        lives.append(leg(axes["resume_world"], resumes, parent=lives[-1], **other))
    against, launched, extra = reference_of(axes, usual and {**usual, **settings}, usual and {**usual, **resumes})
    unstruck = {name: value for name, value in settings.items() if name in given or name not in neutral}
    undisturbed = unstruck | extra
    # A short deadline is for runs that may hang, which an undisturbed one of the reference trainer does not.
    patient = max(deadline, Leg.deadline) if usual else deadline
    shown = {axis: slug_of(axis, value) for axis, value in axes.items() if axis not in HIDDEN}
    shown["then"] = "-then-".join("-".join(lives_words(life)) for life in axes["then"] or []) or None
    return Cell(
        id=cell_id(axes),
        control=control,
        axes={axis: value for axis, value in shown.items() if axis not in QUIET or value != DEFAULTS[axis]},
        reference=leg(launched, undisturbed, patient, **first),
        twin=leg(launched, undisturbed, patient, repeat=1, **first),
        lives=tuple(lives),
        expect=expect,
        against=against,
        original=leg(axes["world"], unstruck, patient, **first) if "handover" in extra else None,
    )


def planned(life: Mapping[str, Any], axes: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The faults of one life, as a leg's specification holds them."""
    found = []
    for number, fault in enumerate(normal_faults(life.get("fault", DEFAULTS["fault"]))):
        point = life.get("point", DEFAULTS["point"])
        # Before the first step no step is told: the point is passed once.
        full = {"id": str(number), "point": point, "step": life.get("kill_step") or None, "attempt": 0, **fault}
        full["step"] = full["step"] or None
        if axes.get("try"):
            full["try"] = axes["try"]
        if full["point"] == RANDOM:
            seed = {axis: value for axis, value in life.items() if axis not in NOT_DRAWN}  # the same on any
            full["pause"] = round(chance(full, seed).random(), 4)
        found.append(full)
    return tuple(found)


def chance(*seed: Any) -> random.Random:
    """Random numbers that depend on nothing but the ``seed``."""
    return random.Random(canonical(seed))


def draw_kill_step(axes: dict[str, Any], steps: int | None) -> None:
    """Draw the step of a random fault that names none."""
    if axes["point"] == RANDOM and axes["kill_step"] is None and steps is not None:
        axes["kill_step"] = chance(axes["world"], axes["fault"], axes["try"]).randint(1, max(1, steps - LATEST))


def lives_words(life: Mapping[str, Any]) -> list[str]:
    """A further life in an id: ``w2``, ``k11-load``, ``sigkill``."""
    words = [f"w{life['world']}"] if "world" in life else []
    point = life.get("point", DEFAULTS["point"])
    words.append(f"k{life.get('kill_step', 0)}" + ("" if point == DEFAULTS["point"] else f"-{point}"))
    return [*words, faults_slug(normal_faults(life.get("fault", DEFAULTS["fault"])))]


def chosen(axes: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {axis.partition(".")[2]: value for axis, value in axes.items() if axis.startswith(group + ".")}


def unusual(axes: Mapping[str, Any], group: str, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a cell chooses, but for those that are so anyway: the same run has one specification."""
    return {name: value for name, value in chosen(axes, group).items() if name not in usual or usual[name] != value}
