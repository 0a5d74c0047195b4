"""What a schema can't see: whether the parts of an experiment make sense together."""

from __future__ import annotations

import ast
import hashlib
import os
import pkgutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonschema

from takeback import backends, matrix
from takeback.document import explain, schema
from takeback.errors import ExperimentError
from takeback.leg import ANYWHERE, LOCAL, launcher_of, victims_of, whom
from takeback.trainers import mesh

PACKAGE = Path(__file__).parent
FOLDER = "folder"  # where checkpoints are kept unless an experiment says otherwise
#: Points that are passed before the first step.
BEFORE_THE_FIRST_STEP = ("start", "load", *ANYWHERE)
#: What :func:`mesh.check_together` takes.
TOGETHER = ("strategy", "reduction", "optimizer_by", "format", "precision")
REFERENCE = ["python", "-m", "takeback.trainers.reference", "--checkpoints", "{checkpoints}", "--backend", "{backend}"]


def usual_settings() -> dict[str, Any]:
    """The settings of the reference trainer, as they are if nobody sets them."""
    return {name: entry["default"] for name, entry in schema("reference-trainer")["properties"].items()}


def trainer_of(given: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Command and settings; files named in the command are known by their digest, so that an edit re-runs."""
    settings = dict(given.get("settings", {}))
    store = {"store": given["store"]} if given.get("store", FOLDER) != FOLDER else {}
    if "name" in given:
        check_settings("trainer.settings", settings)
        return {"command": REFERENCE, "settings": settings, **store}
    if not any("{checkpoints}" in word for word in given["command"]):
        raise ExperimentError(
            "trainer.command: says nowhere where the checkpoints go; put {checkpoints} where your trainer takes "
            "their folder: each run must have one of its own"
        )
    sources = sources_of(given, root)
    if missing := [word for word in given["command"] if word.endswith(".py") and not (root / word).is_file()]:
        raise ExperimentError(f"trainer.command: no file {missing[0]!r}; give it whole, or relative to {root}")
    return {"command": list(given["command"]), "settings": settings, "sources": sources, **store}


def sources_of(given: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Digest of each file whose edit must run the trainer again."""
    scripts = [root / word for word in given["command"] if word.endswith(".py") and (root / word).is_file()]
    files = {file for script in scripts for file in script.parent.glob("*.py")}
    for pattern in given.get("sources", []):
        found = [path for path in root.glob(pattern) if path.is_file()]
        if not found:
            raise ExperimentError(f"trainer.sources: no file matches {pattern!r} in {root}")
        files.update(found)
    return {os.path.relpath(path, root): file_digest(path) for path in sorted(files)}


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def check_settings(key: str, settings: Mapping[str, Any]) -> None:
    """Settings of the reference trainer, by its own schema."""
    flaw = _flaw_of_settings(tuple((name, type(value), value) for name, value in settings.items()))
    if flaw:
        raise ExperimentError(f"{key}.{flaw}".replace(".the file:", ":"))


@cache
def _flaw_of_settings(settings: tuple[tuple[str, type, Any], ...]) -> str:
    """In one line; thousands of cells have the same settings. (The type, as 1 and true are one key otherwise.)"""
    errors = jsonschema.Draft202012Validator(schema("reference-trainer")).iter_errors({n: v for n, _, v in settings})
    error = jsonschema.exceptions.best_match(errors)
    return "" if error is None else explain(error)


@cache
def modules(package: str, defines: str = "") -> tuple[str, ...]:
    """Names of the modules in a sub-package, without importing any of it: what a seam offers.

    Args:
        defines: a constant which tells those that count from their helpers.
    """
    names = sorted(module.name for module in pkgutil.iter_modules([str(PACKAGE / package)]))
    return tuple(name for name in names if not defines or defines in constants(package, name))


@cache
def constants(package: str, module: str) -> dict[str, Any]:
    """The literals that a module defines in capitals, without importing it: what it takes, and from whom."""
    found = {}
    for node in ast.parse((PACKAGE / package / f"{module}.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            with suppress(ValueError):  # computed: not ours to know
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def check_meaning(key: str, axes: Mapping[str, Any], trainer: Mapping[str, Any]) -> None:
    """What a schema can't see: one point of the matrix must make sense as a whole."""
    settings = {**trainer["settings"], **matrix.chosen(axes, "trainer")}
    reference = trainer["command"] == REFERENCE
    settings = usual_settings() | settings if reference else settings
    matrix.draw_kill_step(axes, settings.get("steps"))
    for axis in ("world", "resume_world", "kill_step"):
        if axes[axis] is None:
            raise ExperimentError(f"{key}: missing key {axis!r}; allowed: a step of the run, counted from 1")
        if type(axes[axis]) is not int:
            raise ExperimentError(f"{key}.{axis}: {axes[axis]!r} is not allowed here; a whole number, or same")
    if reference:
        check_reference(key, axes, settings)
    check(key, "backend", axes["backend"], modules("backends"))
    lives = axes["then"] or []
    if lives and settings.get("reduction") in ("allreduce", "buckets") and axes["world"] != axes["resume_world"]:
        raise ExperimentError(f"{key}.then: the handover control changes the world once; use reduction: fixed-order")
    if lives and axes["resume_hardware"]:
        raise ExperimentError(f"{key}.then: lives on other hardware have no reference of their own; leave one out")
    resumes = settings | matrix.chosen(axes, "resume_trainer")
    worlds = [("world", axes["world"], settings), ("resume_world", axes["resume_world"], resumes)]
    worlds += [(f"then.{number}.world", life["world"], resumes) for number, life in enumerate(lives) if "world" in life]
    if named := axes["reference"]:
        other = reference or named.get("world", axes["world"]) != axes["world"]
        if other and "fixed-order" not in (settings.get("reduction"), named.get("trainer", {}).get("reduction")):
            raise ExperimentError(f"{key}.reference: another run is a measure with reduction: fixed-order alone")
        if reference:
            check_settings(f"{key}.reference.trainer", named.get("trainer", {}))
        worlds.append(("reference.world", named.get("world", axes["world"]), settings | named.get("trainer", {})))
    for axis, world, of_run in worlds:
        check_world(f"{key}.{axis}", world, of_run, reference)
        if reference:
            check_together(f"{key}.{axis}", of_run)
    check_launcher(key, axes, settings)
    if "store" in trainer:
        check_objects(key, [axes, *lives], settings, resumes)
    ranks, world = partial(backends.processes, axes["backend"]), axes["world"]
    if launcher_of(axes["launcher"]) != LOCAL and ranks(world) != world:
        raise ExperimentError(f"{key}.launcher: {axes['backend']} has all devices in one process; allowed: {LOCAL}")
    check_life(key, {**axes, "step": axes["kill_step"]}, ranks(world), settings, reference)
    for number, life in enumerate(lives):
        world = life.get("world", world)
        check_life(f"{key}.then.{number}", {"kill_step": 0, **life}, ranks(world), settings, reference)


def check_world(key: str, world: int, settings: Mapping[str, Any], reference: bool) -> None:
    """A run of ``settings`` can have this number of ranks; ``reference``: these are the reference trainer's."""
    shards = settings.get("shards")
    if shards is None:
        return
    parts = 1
    if reference:
        try:
            dimensions = mesh.of(settings, world)
        except ValueError as error:
            raise ExperimentError(f"{key}: {error}") from None
        parts = dimensions.get("tensor", 1)
        if settings["heads"] % parts:
            raise ExperimentError(f"{key}: {parts} tensor-parallel ranks do not divide the {settings['heads']} heads")
    if shards % (world // parts):
        allowed = ", ".join(str(n * parts) for n in range(1, shards + 1) if shards % n == 0)
        raise ExperimentError(f"{key}: {world} does not divide the {shards} shards; allowed: {allowed}")


def check_together(key: str, settings: Mapping[str, Any]) -> None:
    """Settings of the reference trainer that depend on one another."""
    try:
        mesh.check_together(*(settings[name] for name in TOGETHER))
    except ValueError as error:
        raise ExperimentError(f"{key}: {error}") from None


def check_life(key: str, life: Mapping[str, Any], world: int, settings: Mapping[str, Any], reference: bool) -> None:
    """What strikes one leg of ``world`` ranks, and where."""
    steps = settings.get("steps")
    for fault in matrix.planned(life, life):
        check(key, "fault", fault["kind"], modules("faults"))
        check_parameters(f"{key}.fault.with", fault)
        point, step = fault["point"], fault["step"] or 0
        if reference and point not in ANYWHERE:
            check(key, "point", point, schema("reference-trainer")["x-points"])
        if not step and point not in BEFORE_THE_FIRST_STEP:
            raise ExperimentError(f"{key}.kill_step: 0 is before the first step; for {point} allowed: 1 to {steps}")
        if steps is not None and step > steps:
            raise ExperimentError(f"{key}.kill_step: {step} is outside the run; allowed: 1 to {steps}")
        if (point == "time") != ("seconds" in fault):
            raise ExperimentError(f"{key}.fault: seconds and point: time go together; give both or neither")
        check_victims(key, fault, life.get("launcher", LOCAL), world)
        alone = schema("reference-trainer")["x-points-of-rank-0"] if reference else ()
        if settings.get("format", "file") != "file":
            alone = [name for name in alone if name not in schema("reference-trainer")["x-points-of-each-writer"]]
        if point in alone and whom(fault) == "ranks" and 0 not in victims_of(fault, world):
            raise ExperimentError(f"{key}.point: rank 0 alone comes by {point}; allowed: fault ranks [0] or all")


def check_objects(key: str, lives: list[Mapping[str, Any]], *settings: Mapping[str, Any]) -> None:
    """On an object store there are no files and no disk of the trainer's own for a fault to strike, and one way to
    write.
    """
    for way in (of_run.get("write", "whole") for of_run in settings):
        if way != "whole":
            raise ExperimentError(f"{key}.trainer.write: {way} is a way to write to a folder")
    for life in lives:
        for fault in matrix.planned(life, life):
            if constants("faults", fault["kind"]).get("OF_FILES"):
                raise ExperimentError(f"{key}.fault: {fault['kind']} strikes files; leave out trainer.store")


def check_victims(key: str, fault: Mapping[str, Any], launcher: Any, world: int) -> None:
    """Whom a fault names is there, and may be struck by it, in the attempt that it names."""
    kind, name = whom(fault), launcher_of(launcher)
    given, does = fault[kind], constants("launchers", name)
    only = constants("faults", fault["kind"]).get("RANKS", given)
    if kind not in does.get("VICTIMS", ["ranks"]):
        raise ExperimentError(f"{key}.fault.{kind}: the launcher {name} has none")
    if kind != "ranks":
        world //= {**does["PARAMETERS"], **launcher.get("with", {})}["nproc"] or world
    if not isinstance(given, str) and max(given) >= world:
        allowed = f"allowed: 0 to {world - 1}"
        what = f"rank of world {world}" if kind == "ranks" else f"number of one of {world} {kind}"
        raise ExperimentError(f"{key}.fault.{kind}: {max(given)} is no {what}; {allowed}")
    if only != given:
        raise ExperimentError(f"{key}.fault.ranks: {fault['kind']} strikes {only} ranks")
    check(key, "fault", fault["kind"], does.get("FAULTS", [fault["kind"]]))
    has = (*does.get("VICTIMS", []), *does.get("OFFERS", []))
    if (needs := constants("faults", fault["kind"]).get("NEEDS")) and needs not in has:
        raise ExperimentError(f"{key}.fault: {fault['kind']} needs a launcher with {needs}; {name} has none")
    if fault["attempt"] and not does.get("RESTARTS"):
        raise ExperimentError(f"{key}.fault.attempt: the launcher {name} never starts a run again; allowed: 0")


def check_launcher(key: str, axes: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """The launcher is there, has the parameters that it is given, and can do what the cell asks of it."""
    launcher, world = axes["launcher"], axes["world"]
    name = launcher_of(launcher)
    check(key, "launcher", name, modules("launchers", "PARAMETERS"))
    does, given = constants("launchers", name), {} if isinstance(launcher, str) else launcher
    check_parameters(f"{key}.launcher.with", {**given, "kind": name}, "launchers")
    if given.get("environment") and "VICTIMS" not in does:
        raise ExperimentError(f"{key}.launcher.environment: the launcher {name} takes none")
    check(key, "resume_by", axes["resume_by"], ("leg", "launcher") if does.get("RESTARTS") else ("leg",))
    if name == LOCAL:
        return
    if axes["then"]:
        raise ExperimentError(f"{key}.then: further lives are of the launcher {LOCAL}; give the faults an attempt each")
    each = {**does["PARAMETERS"], **given.get("with", {})}["nproc"]
    if each < min(1, does["PARAMETERS"]["nproc"]):
        raise ExperimentError(f"{key}.launcher.with.nproc: {each} ranks a node are none; at least 1")
    if each and world % each:
        raise ExperimentError(f"{key}.launcher.with.nproc: {each} ranks a node can't be {world} ranks")
    if axes["resume_by"] == "launcher" and world != axes["resume_world"] and settings.get("reduction") == "allreduce":
        raise ExperimentError(f"{key}.resume_by: the handover control is a leg's; use reduction: fixed-order")


def starts_every_leg(launcher: Any) -> bool:
    """Whether a launcher is for all legs of a cell, and not for the one alone that it may have to start again."""
    return constants("launchers", launcher_of(launcher)).get("EVERY_LEG", False)


def check_parameters(key: str, what: Mapping[str, Any], package: str = "faults") -> None:
    """The parameters that an experiment gives to a fault or launcher are those which it has, and of their kind."""
    literals = constants(package, what["kind"])
    usual, choices = literals.get("PARAMETERS", {}), literals.get("CHOICES", {})
    for name, value in what.get("with", {}).items():
        if name not in usual:
            raise ExperimentError(f"{key}.{name}: {what['kind']} has no such parameter; {named(usual)}")
        if isinstance(value, str) != isinstance(usual[name], str):
            raise ExperimentError(f"{key}.{name}: {value!r} is not allowed here; such as {usual[name]!r}")
        check(key, name, value, choices.get(name, [value]))


def named(usual: Mapping[str, Any]) -> str:
    return f"one of: {', '.join(usual)}" if usual else "it has none"


def check_reference(key: str, axes: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """What the reference trainer would refuse at its start; ``settings`` are all of them, the usual ones included."""
    for group in matrix.SETTINGS:
        check_settings(f"{key}.{group}", matrix.chosen(axes, group))
    if settings["width"] % settings["heads"]:
        raise ExperimentError(
            f"{key}.trainer.heads: {settings['heads']} does not divide the width, {settings['width']}"
        )
    if settings["samples"] < settings["shards"] * settings["batch"]:
        need = settings["shards"] * settings["batch"]
        raise ExperimentError(
            f"{key}.trainer.samples: {settings['samples']} is less than one step takes; at least {need}"
        )


def check(key: str, axis: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise ExperimentError(f"{key}.{axis}: {value!r} is not known; one of: {', '.join(allowed)}")
