"""An experiment: one YAML file, read, checked and expanded. Any mistake is one line.

>>> experiment = load(Path("experiments/kill_resume.yaml"))
>>> len(experiment.cells)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takeback import matrix
from takeback.document import read, schema
from takeback.errors import ExperimentError
from takeback.leg import Leg, digest
from takeback.matrix import Cell, Expectation
from takeback.meaning import REFERENCE, check, check_meaning, modules, starts_every_leg, trainer_of, usual_settings

ROOT = Path(__file__).parents[2]
#: Names that are taken: those of the rules, and of the folders that all experiments share.
RESERVED = (
    "all",
    "bench",
    "check",
    "environment",
    "envs",
    "leg",
    "lessons",
    "logs",
    "page",
    "runs",
    "screenshots",
    "verdicts",
)


@dataclass(frozen=True)
class Claim:
    """A sentence, and the ids of the cells that bear it out."""

    text: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """A whole experiment, expanded; ``digest`` is that of the document it was read from.

    ``alone``: nothing runs beside the runs that are struck and resumed; ``figures``: further figures of its page.
    """

    name: str
    title: str
    question: str
    trainer: dict[str, Any]
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...]
    digest: str
    alone: bool = False
    figures: tuple[str, ...] = ()

    @property
    def legs(self) -> dict[str, Leg]:
        """All legs by id, each once, parents before children."""
        return {leg.id: leg for cell in self.cells for leg in cell.legs}

    @property
    def timed(self) -> set[str]:
        """Legs whose times are asked for, so that nothing may run beside them: the struck and the resumed ones."""
        return {leg.id for cell in self.cells for leg in cell.lives} if self.alone else set()


def load(path: Path, root: Path = ROOT) -> Experiment:
    """Read one experiment.

    Args:
        path: the YAML file; its stem is the experiment's name.
        root: folder that the files named in ``trainer.command`` are relative to.

    Raises:
        ExperimentError: unreadable, not valid by ``experiment.schema.yaml``, or without meaning
            (a kill step outside the run, a world that does not divide the shards, no cell, …).
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", path.stem) or path.stem in RESERVED:
        raise ExperimentError(
            f"{path}: {path.stem!r} can't be the name of an experiment; letters, digits, _ and -, but none of: "
            + ", ".join(RESERVED)
        )
    document = read(path)
    try:
        return expand(path.stem, document, root)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    except (TypeError, ValueError, ArithmeticError, OSError, RecursionError) as error:
        # Nobody has thought of this one; it is still a mistake in the file, and one line.
        raise ExperimentError(f"{path}: is not understood: {' '.join(str(error).split())[:300]}") from error


def expand(name: str, document: Mapping[str, Any], root: Path) -> Experiment:
    """From a valid document to cells; raises ExperimentError where it has no meaning."""
    trainer = trainer_of(document["trainer"], root)
    ours = trainer["command"] == REFERENCE
    usual = usual_settings() if ours else None
    neutral = schema("reference-trainer")["x-changes-no-bit"] if ours else ()
    seconds = {"deadline": float(document.get("deadline", 120)), "notice": document.get("notice")}
    for figure in document.get("figures", []):
        check(f"figures: {figure}", "figure", figure, modules("figures/further"))
    base = document["matrix"]
    cells: list[Cell] = []

    def add(key: str, block: Mapping[str, Any], base: Mapping[str, Any] | None, control: str | None = None) -> int:
        expect = Expectation(**block.get("expect", document["expect"]))
        before = len(cells)
        for axes in matrix.product(block, base):
            if not control and any(matrix.matches(axes, out) for out in document.get("exclude", [])):
                continue
            check_meaning(key, axes, trainer)
            every_leg = starts_every_leg(axes["launcher"])
            more = {"usual": usual, "neutral": neutral, "expect": expect, "control": control, **seconds}
            cells.append(matrix.cell_of(axes, trainer=trainer, every_leg=every_leg, **more))
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
    fill_axes(cells, {**(usual or {}), **trainer["settings"]})
    return Experiment(
        name=name,
        title=document["title"],
        question=" ".join(document["question"].split()),
        trainer=trainer,
        cells=tuple(cells),
        claims=tuple(claims_of(document.get("claims", []), cells)),
        digest=digest(document, 16),
        alone=document.get("alone", False),
        figures=tuple(document.get("figures", ())),
    )


def fill_axes(cells: list[Cell], settings: Mapping[str, Any]) -> None:
    """Give each cell a value on the axes that only others name: what its run really uses."""
    quiet = {axis: matrix.DEFAULTS[axis] for axis in ("launcher", "resume_by")} | matrix.HARDWARE
    named = {axis: value for axis, value in quiet.items() if any(axis in cell.axes for cell in cells)}
    names = dict.fromkeys(axis for cell in cells for axis in cell.axes if "." in axis)
    names = sorted(names, key=lambda axis: axis.startswith("resume"))
    for cell in cells:
        for axis in names:
            group, _, name = axis.partition(".")
            usual = settings.get(name)
            # A resumed run has what the killed one had, unless it is told otherwise.
            cell.axes.setdefault(axis, cell.axes.get(f"trainer.{name}", usual) if group == "resume_trainer" else usual)
        for axis, value in named.items():
            cell.axes.setdefault(axis, value)


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
