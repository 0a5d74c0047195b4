"""From the evidence of legs to verdicts on cells, and from those to the experiment's findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from takeback import checkers, clock, evidence, parallel
from takeback.checkers.case import Case, LegView

if TYPE_CHECKING:
    from takeback.evidence import Evidence
    from takeback.experiment import Experiment
    from takeback.matrix import Cell, Expectation

#: Columns of numbers that a cell may lack: kept as whole numbers, with a gap.
_NULLABLE = {"integer": "Int64", "boolean": "boolean", "number": "Float64"}


def judge(cell: Cell, evidences: Mapping[str, Evidence]) -> dict[str, Any]:
    """The row of one cell: the columns of ``verdicts.schema.yaml``, then its axes.

    Args:
        cell: what to judge.
        evidences: evidence by leg id, at least of the cell's legs.
    """
    legs = {leg.id: LegView(evidences[leg.id]) for leg in cell.legs}
    return _row(cell, checkers.judge(Case.of(cell, legs)), legs)


def judge_experiment(experiment: Experiment, runs: Path, processes: int = 1, partly: bool = False) -> pd.DataFrame:
    """One row a cell, in the order of the experiment, whatever the number of ``processes``.

    Cells that share legs are judged one after the other: each leg is read and prepared once a process, however
    many cells use it, and let go after the last one.

    Args:
        runs: folder of the legs.
        partly: whether a time budget has left legs out; a cell that lacks one is ``not-run``.

    Raises:
        EvidenceError: evidence of a leg is missing or can't be read.
    """
    cells = experiment.cells
    order = sorted(range(len(cells)), key=lambda n: (cells[n].reference.id, cells[n].killed.id))
    # Several pieces a process, since legs of many ranks take longer and stand side by side.
    size = -(-len(order) // (8 * processes if processes > 1 else 1))
    pieces = [order[start : start + size] for start in range(0, len(order), size)]
    judged = parallel.mapped(lambda piece: _rows([cells[n] for n in piece], runs, partly), pieces, processes)
    rows = dict(zip(chain(*pieces), chain(*judged), strict=True))
    return _frame([rows[n] for n in range(len(cells))])


def _rows(cells: Sequence[Cell], runs: Path, partly: bool) -> list[dict[str, Any]]:
    ids = {leg.id for cell in cells for leg in cell.legs}
    there = {leg for leg in ids if not partly or (runs / leg / "events.parquet").exists()}
    judged = [all(leg.id in there for leg in cell.legs) for cell in cells]
    last_use = {leg.id: number for number, cell in enumerate(cells) if judged[number] for leg in cell.legs}
    legs: dict[str, LegView] = {}
    rows = []
    for number, cell in enumerate(cells):
        if not judged[number]:
            rows.append(_row(cell, checkers.Judgement("not-run", clock.REASON, ()), {}))
            continue
        of_cell = dict.fromkeys(leg.id for leg in cell.legs)
        for leg_id in of_cell:
            if leg_id not in legs:
                legs[leg_id] = LegView(evidence.read(runs, leg_id))
        rows.append(_row(cell, checkers.judge(Case.of(cell, legs)), legs))
        for leg_id in of_cell:
            if last_use[leg_id] == number:
                del legs[leg_id]
    return rows


def _row(cell: Cell, judgement: checkers.Judgement, legs: Mapping[str, LegView]) -> dict[str, Any]:
    expect = cell.expect
    row = dict.fromkeys(evidence.columns("verdicts"))
    row |= {"steps_compared": 0, "losses_different": 0, "states_compared": 0, "states_different": 0}
    for finding in judgement.findings:
        row |= finding.columns
    restored_elsewhere = expect.restored is not None and row["restored_step"] != expect.restored
    row |= {
        "cell": cell.id,
        "control": cell.control,
        "verdict": judgement.verdict,
        "expected": expect.verdict,
        "surprise": is_surprise(
            expect,
            judgement.verdict,
            judgement.first_step,
            judgement.first_state,
            judgement.diagnosis,
            row["survivors_saw"],
        )
        or (restored_elsewhere and judgement.verdict != "not-run")
        or (judgement.verdict != "not-run" and is_too_far(expect, row["max_ulp"], row["first_ulp"])),
        "first_step": judgement.first_step,
        "first_state": judgement.first_state,
        "diagnosis": judgement.diagnosis,
        "comparison": _comparison(cell, legs, [finding.compared for finding in judgement.findings]),
        "expected_first_step": expect.first_step,
        "expected_first_state": expect.first_state,
        "expected_restored_step": expect.restored,
        "expected_sees": expect.sees,
        "expected_ulp": ulp_words(expect),
        "because": expect.because,
        "reference": cell.reference.id,
        "killed": cell.killed.id,
        "resumed": cell.resumed.id,
    }
    return row | cell.axes


def is_surprise(
    expect: Expectation,
    verdict: str,
    first_step: int | None,
    first_state: str | None,
    diagnosis: str,
    survivors_saw: str | None = None,
) -> bool:
    """Whether the prediction failed: the verdict, where the difference was predicted to begin, the reason, the error.

    A cell that could not run is no surprise. ``expect.first_state`` is a name or a pattern (``rng.*``).
    """
    if verdict == "not-run":
        return False
    if verdict not in (expect.verdict, *expect.or_verdict) or (expect.says or "") not in diagnosis:
        return True
    if (expect.sees or "") not in (survivors_saw or ""):
        return True
    if verdict != "different":
        return False
    if expect.first_step is not None and expect.first_step != first_step:
        return True
    return expect.first_state is not None and not _is_named(first_state, expect.first_state)


def is_too_far(expect: Expectation, max_ulp: int | None, first_ulp: int | None) -> bool:
    """Whether losses are further apart than predicted, or less far; what has no distance is both."""
    bounds = ((max_ulp, expect.max_ulp), (first_ulp, expect.max_first_ulp))
    if any(bound is not None and (far is None or far > bound) for far, bound in bounds):
        return True
    return expect.min_ulp is not None and (max_ulp is None or max_ulp < expect.min_ulp)


def ulp_words(expect: Expectation) -> str | None:
    """``at most 64 ULP; at most 4 ULP at the first step``, as predicted."""
    words = {"at least {:,} ULP": expect.min_ulp, "at most {:,} ULP": expect.max_ulp,
             "at most {:,} ULP at the first step": expect.max_first_ulp}  # fmt: skip
    return "; ".join(text.format(bound) for text, bound in words.items() if bound is not None) or None


def _is_named(name: str | None, pattern: str) -> bool:
    return name is not None and (name == pattern or fnmatchcase(name, pattern))


def _comparison(cell: Cell, legs: Mapping[str, LegView], compared: list[str]) -> str:
    made = [words for words in compared if words]
    if not made:
        return "nothing was compared"
    reference, resumed = legs[cell.reference.id], legs[cell.resumed.id]
    # What must not change a bit is no setting of the reference, so that cells share it.
    without = sorted(cell.killed.trainer["settings"].keys() - cell.reference.trainer["settings"].keys())
    lacks = f", without {', '.join(without)}" if without else ""
    sides = f"resumed leg (world {resumed.world}) against the uninterrupted reference (world {reference.world}{lacks})"
    return f"{cell.against}, {resumed.spec['backend']}: {sides}: {'; '.join(made)}"


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table whose whole numbers stay whole beside gaps."""
    frame = pd.DataFrame(rows)
    known = evidence.columns("verdicts")
    types = {}
    for name, column in known.items():
        kinds = column.get("type")
        if isinstance(kinds, list):
            types[name] = _NULLABLE.get(kinds[0], "object")
    frame = frame.astype(types)
    axes = frame.columns.difference(list(known), sort=False)
    frame[axes] = frame[axes].convert_dtypes()
    for axis in axes:
        if frame[axis].dtype == object:
            # One setting may be a number in one cell and a word in another; a column has one type.
            frame[axis] = frame[axis].map(str, na_action="ignore").astype("string")
    return frame


def findings(experiment: Experiment, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Each claim of the experiment, whether it holds, and in which cells (``findings.schema.yaml``)."""
    by_cell = verdicts.set_index("cell")
    rows = []
    for claim in experiment.claims:
        cells = by_cell.loc[list(claim.cells)]
        ran = cells[cells["verdict"] != "not-run"]
        against = ran.index[ran["surprise"].astype(bool)]
        words = f"{len(ran) - len(against)} of {len(ran)}"
        if len(against):
            words += f"; not: {', '.join(against)}"
        if len(ran) < len(cells):
            words += f"; {len(cells) - len(ran)} not run"
        holds = "no" if len(against) else "yes" if len(ran) else "not-run"
        rows.append({"claim": claim.text, "holds": holds, "cells": words})
    return pd.DataFrame(rows, columns=list(evidence.columns("findings")))


def write(folder: Path, experiment: Experiment, verdicts: pd.DataFrame, metadata: Mapping[str, str]) -> None:
    """Write ``verdicts.parquet``, ``verdicts.tsv`` and ``findings.tsv`` into ``folder``.

    Raises:
        EvidenceError: the folder can't be written, or the disk is full.
    """
    evidence.write_table(folder / "verdicts.parquet", "verdicts", verdicts, metadata)
    try:
        verdicts.to_csv(folder / "verdicts.tsv", sep="\t", index=False)
        findings(experiment, verdicts).to_csv(folder / "findings.tsv", sep="\t", index=False)
    except OSError as error:
        raise evidence.EvidenceError(f"{folder}: cannot be written: {error.strerror or error}") from None
