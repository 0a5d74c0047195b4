"""An experiment: one YAML file, read, checked and expanded. Any mistake is one line.

>>> experiment = load(Path("experiments/kill_resume.yaml"))
>>> len(experiment.cells)
"""

from __future__ import annotations

import hashlib
import pkgutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from takeback import matrix
from takeback.errors import ExperimentError
from takeback.leg import Leg, digest
from takeback.matrix import Cell, Expectation

ROOT = Path(__file__).parents[2]
SCHEMAS = Path(__file__).parents[1] / "schemas"
REFERENCE = ["python", "-m", "takeback.trainers.reference", "--checkpoints", "{checkpoints}", "--backend", "{backend}"]


@dataclass(frozen=True)
class Claim:
    """A sentence, and the ids of the cells that bear it out."""

    text: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    question: str
    trainer: dict[str, Any]
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...]
    digest: str

    @property
    def legs(self) -> dict[str, Leg]:
        """All legs by id, each once, parents before children."""
        return {leg.id: leg for cell in self.cells for leg in cell.legs}


def load(path: Path, root: Path = ROOT) -> Experiment:
    """Read one experiment.

    Args:
        path: the YAML file; its stem is the experiment's name.
        root: folder that the files named in ``trainer.command`` are relative to.

    Raises:
        ExperimentError: unreadable, not valid by ``experiment.schema.yaml``, or without meaning
            (a kill step outside the run, a world that does not divide the shards, no cell, …).
    """
    document = read(path)
    try:
        return expand(path.stem, document, root)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None


class _NoDuplicates(yaml.SafeLoader):
    """YAML lets a second key of the same name win in silence; here it is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag.rpartition(":")[2] != "merge"]
        for key, count in Counter(map(str, keys)).items():
            if count > 1:
                raise ExperimentError(f"{key}: the key stands {count} times in one mapping; keep one")
        return super().construct_mapping(node, deep)


def read(path: Path) -> dict[str, Any]:
    """The YAML document, valid by the schema."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _NoDuplicates)
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ExperimentError(f"{path}: is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ExperimentError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    errors = jsonschema.Draft202012Validator(schema("experiment")).iter_errors(document)
    error = jsonschema.exceptions.best_match(errors)
    if error is not None:
        raise ExperimentError(f"{path}: {explain(error)}")
    return document


@cache
def schema(name: str) -> dict[str, Any]:
    return yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text(encoding="utf-8"))


def explain(error: jsonschema.ValidationError) -> str:
    """A schema error as one line: key, what is wrong, what is allowed."""
    where = ".".join(map(str, error.absolute_path)) or "the file"
    allowed = error.schema.get("properties") if isinstance(error.schema, dict) else None
    match error.validator:
        case "additionalProperties" | "unevaluatedProperties":
            names = allowed or schema("experiment")["$defs"]["block"]["propertyNames"]["enum"]
            unknown = sorted(set(error.instance) - set(names))
            return f"{where}: unknown key {', '.join(map(repr, unknown))}; allowed: {', '.join(sorted(names))}"
        case "enum":
            return f"{where}: {error.instance!r} is not allowed; one of: {', '.join(map(str, error.validator_value))}"
        case "type":
            return f"{where}: {error.instance!r} is not of type {error.validator_value}"
        case "required":
            missing = [key for key in error.validator_value if key not in error.instance]
            return f"{where}: missing key {', '.join(map(repr, missing))}"
        case "oneOf":
            return f"{where}: {error.instance!r} is not allowed; {error.schema['description']}"
        case "minItems":
            return f"{where}: the list is empty; give at least one value"
        case "minimum":
            return f"{where}: {error.instance} is too small; at least {error.validator_value}"
    return f"{where}: {' '.join(error.message.split())}"


def expand(name: str, document: Mapping[str, Any], root: Path) -> Experiment:
    """From a valid document to cells; raises ExperimentError where it has no meaning."""
    trainer = trainer_of(document["trainer"], root)
    deadline = float(document.get("deadline", 120))
    base = document["matrix"]
    cells: list[Cell] = []

    def add(key: str, block: Mapping[str, Any], base: Mapping[str, Any] | None, control: str | None = None) -> int:
        expect = Expectation(**block.get("expect", document["expect"]))
        before = len(cells)
        for axes in matrix.product(block, base):
            if not control and any(matrix.matches(axes, out) for out in document.get("exclude", [])):
                continue
            check_meaning(key, axes, trainer)
            cells.append(matrix.cell_of(axes, trainer=trainer, expect=expect, control=control, deadline=deadline))
        return len(cells) - before

    add("matrix", base, None)
    for number, block in enumerate(document.get("include", [])):
        add(f"include.{number}", block, base)
    if not cells:
        raise ExperimentError("matrix: no cell is left; exclude takes out everything")
    for number, block in enumerate(document.get("controls", [])):
        add(f"controls.{number}", block, base, block["name"])
    for cell, count in Counter(cell.id for cell in cells).items():
        if count > 1:
            raise ExperimentError(f"matrix, include, controls: the cell {cell} is there {count} times; keep one")
    fill_axes(cells, trainer)
    return Experiment(
        name=name,
        title=document["title"],
        question=" ".join(document["question"].split()),
        trainer=trainer,
        cells=tuple(cells),
        claims=tuple(claims_of(document.get("claims", []), cells)),
        digest=digest(document, 16),
    )


def fill_axes(cells: list[Cell], trainer: Mapping[str, Any]) -> None:
    """Give each cell a value on the trainer's axes that only others name: what its run really uses."""
    usual = dict(trainer["settings"])
    if trainer["command"] == REFERENCE:
        usual = {name: entry["default"] for name, entry in schema("reference-trainer")["properties"].items()} | usual
    names = list(dict.fromkeys(axis for cell in cells for axis in cell.axes if "." in axis))
    for cell in cells:
        for axis in names:
            cell.axes.setdefault(axis, usual.get(axis.partition(".")[2]))


def trainer_of(given: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Command and settings; files named in the command are known by their digest, so that an edit re-runs."""
    settings = dict(given.get("settings", {}))
    if "name" in given:
        check_settings("trainer.settings", settings)
        return {"command": REFERENCE, "settings": settings}
    sources = {word: file_digest(root / word) for word in given["command"] if (root / word).is_file()}
    missing = [word for word in given["command"] if word.endswith(".py") and word not in sources]
    if missing:
        raise ExperimentError(f"trainer.command: no file {missing[0]!r} in {root}; give it relative to the Snakefile")
    return {"command": list(given["command"]), "settings": settings, "sources": sources}


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def check_settings(key: str, settings: Mapping[str, Any]) -> None:
    """Settings of the reference trainer, by its own schema."""
    errors = jsonschema.Draft202012Validator(schema("reference-trainer")).iter_errors(dict(settings))
    error = jsonschema.exceptions.best_match(errors)
    if error is not None:
        raise ExperimentError(f"{key}.{explain(error)}".replace(".the file:", ":"))


@cache
def modules(package: str) -> tuple[str, ...]:
    """Names of the modules in a sub-package: what a seam offers, without importing any of it."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / package)])))


def check_meaning(key: str, axes: Mapping[str, Any], trainer: Mapping[str, Any]) -> None:
    """What a schema can't see: one point of the matrix must make sense as a whole."""
    own = matrix.chosen(axes, "trainer"), matrix.chosen(axes, "resume_trainer")
    settings = {**trainer["settings"], **own[0]}
    if trainer["command"] == REFERENCE:
        check_settings(f"{key}.trainer", own[0])
        check_settings(f"{key}.resume_trainer", own[1])
        known = schema("reference-trainer")
        settings = {name: entry["default"] for name, entry in known["properties"].items()} | settings
        check(key, "point", axes["point"], known["x-points"])
    check(key, "backend", axes["backend"], modules("backends"))
    check(key, "fault", axes["fault"]["kind"], modules("faults"))
    if axes["kill_step"] is None:
        raise ExperimentError(f"{key}: missing key 'kill_step'; allowed: a step of the run, counted from 1")
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


def check(key: str, axis: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise ExperimentError(f"{key}.{axis}: {value!r} is not known; one of: {', '.join(allowed)}")


def claims_of(claims: list[Mapping[str, Any]], cells: list[Cell]) -> list[Claim]:
    found = []
    for number, claim in enumerate(claims):
        wanted = claim.get("control")
        if wanted:
            ids = [cell.id for cell in cells if cell.control and wanted in ("*", cell.control)]
        else:
            where = claim.get("where", {})
            ids = [cell.id for cell in cells if not cell.control and matrix.matches(cell.axes, where)]
        if not ids:
            raise ExperimentError(f"claims.{number}: no cell bears this claim; see its 'where' or 'control'")
        found.append(Claim(" ".join(claim["claim"].split()), tuple(ids)))
    return found
