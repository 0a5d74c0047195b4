"""What a schema can't see: whether the parts of an experiment make sense together."""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from takeback import matrix
from takeback.document import explain, schema
from takeback.errors import ExperimentError

REFERENCE = ["python", "-m", "takeback.trainers.reference", "--checkpoints", "{checkpoints}", "--backend", "{backend}"]


def usual_settings() -> dict[str, Any]:
    """The settings of the reference trainer, as they are if nobody sets them."""
    return {name: entry["default"] for name, entry in schema("reference-trainer")["properties"].items()}


def trainer_of(given: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Command and settings; files named in the command are known by their digest, so that an edit re-runs."""
    settings = dict(given.get("settings", {}))
    if "name" in given:
        check_settings("trainer.settings", settings)
        return {"command": REFERENCE, "settings": settings}
    if not any("{checkpoints}" in word for word in given["command"]):
        raise ExperimentError(
            "trainer.command: says nowhere where the checkpoints go; put {checkpoints} where your trainer takes their "
            "folder: each run must have one of its own"
        )
    sources = sources_of(given, root)
    missing = [word for word in given["command"] if word.endswith(".py") and word not in sources]
    if missing:
        raise ExperimentError(f"trainer.command: no file {missing[0]!r} in {root}; give it relative to the Snakefile")
    return {"command": list(given["command"]), "settings": settings, "sources": sources}


def sources_of(given: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Digest of each file whose edit must run the trainer again."""
    scripts = [root / word for word in given["command"] if word.endswith(".py") and (root / word).is_file()]
    files = {file for script in scripts for file in script.parent.glob("*.py")}
    for pattern in given.get("sources", []):
        found = [path for path in root.glob(pattern) if path.is_file()]
        if not found:
            raise ExperimentError(f"trainer.sources: no file matches {pattern!r} in {root}")
        files.update(found)
    return {str(path.relative_to(root)): file_digest(path) for path in sorted(files)}


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
def modules(package: str) -> tuple[str, ...]:
    """Names of the modules in a sub-package: what a seam offers, without importing any of it."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / package)])))


def check_meaning(key: str, axes: Mapping[str, Any], trainer: Mapping[str, Any]) -> None:
    """What a schema can't see: one point of the matrix must make sense as a whole."""
    for axis in ("world", "resume_world", "kill_step"):
        if axes[axis] is None:
            raise ExperimentError(f"{key}: missing key {axis!r}; allowed: a step of the run, counted from 1")
        if type(axes[axis]) is not int:
            raise ExperimentError(f"{key}.{axis}: {axes[axis]!r} is not allowed here; a whole number, or same")
    settings = {**trainer["settings"], **matrix.chosen(axes, "trainer")}
    if trainer["command"] == REFERENCE:
        settings = usual_settings() | settings
        check_reference(key, axes, settings)
    check(key, "backend", axes["backend"], modules("backends"))
    check(key, "fault", axes["fault"]["kind"], modules("faults"))
    steps, shards = settings.get("steps"), settings.get("shards")
    if steps is not None and axes["kill_step"] > steps:
        raise ExperimentError(f"{key}.kill_step: {axes['kill_step']} is outside the run; allowed: 1 to {steps}")
    for axis in ("world", "resume_world"):
        if shards is not None and shards % axes[axis]:
            allowed = ", ".join(str(n) for n in range(1, shards + 1) if shards % n == 0)
            raise ExperimentError(f"{key}.{axis}: {axes[axis]} does not divide the {shards} shards; allowed: {allowed}")
    ranks = axes["fault"]["ranks"]
    if not isinstance(ranks, str) and max(ranks) >= axes["world"]:
        raise ExperimentError(
            f"{key}.fault.ranks: {max(ranks)} is no rank of world {axes['world']}; allowed: 0 to {axes['world'] - 1}"
        )


def check_reference(key: str, axes: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """What the reference trainer would refuse at its start; ``settings`` are all of them, the usual ones included."""
    for group in matrix.SETTINGS:
        check_settings(f"{key}.{group}", matrix.chosen(axes, group))
    check(key, "point", axes["point"], schema("reference-trainer")["x-points"])
    alone, ranks = schema("reference-trainer")["x-points-of-rank-0"], axes["fault"]["ranks"]
    if axes["point"] in alone and axes["world"] > 1 and (ranks == "last" or (ranks != "all" and 0 not in ranks)):
        raise ExperimentError(f"{key}.point: rank 0 alone comes by {axes['point']}; allowed: fault ranks [0] or all")
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
