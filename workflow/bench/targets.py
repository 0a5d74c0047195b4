"""Targets: what a bench must reach, one row a figure, in one table that several benches write to."""

from __future__ import annotations

import csv
import operator
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

COLUMNS = ("figure", "min", "median", "max", "target", "met")
COMPARE = {"<=": operator.le, ">=": operator.ge}


def row(figure: str, samples: Sequence[float], target: str = "") -> dict[str, str]:
    """One line of the table.

    Args:
        figure: what was measured, with its unit: ``supervisor CPU an attempt, ms``.
        samples: one number a repetition.
        target: ``<= 50`` or ``>= 30``, which the median must meet; empty for a figure that is only told.

    Raises:
        ValueError: no sample, or a target of another form.
    """
    if not samples:
        raise ValueError(f"{figure}: no sample")
    numbers = {"min": min(samples), "median": statistics.median(samples), "max": max(samples)}
    met = ""
    if target:
        sign, _, bound = target.partition(" ")
        if sign not in COMPARE:
            raise ValueError(f"{figure}: target {target!r} is neither '<= NUMBER' nor '>= NUMBER'")
        met = "yes" if COMPARE[sign](numbers["median"], float(bound)) else "no"
    return {"figure": figure, **{name: f"{value:.4g}" for name, value in numbers.items()}, "target": target, "met": met}


def merge(rows: Iterable[dict[str, str]], path: Path) -> list[dict[str, str]]:
    """Put ``rows`` into the table at ``path``, in place of those of the same figures; returns all that it holds."""
    held = {old["figure"]: old for old in read(path)} | {new["figure"]: new for new in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        table.writeheader()
        table.writerows(held.values())
    return list(held.values())


def read(path: Path) -> list[dict[str, str]]:
    """The rows at ``path``; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def report(rows: Iterable[dict[str, str]]) -> int:
    """Print ``rows`` as a table; returns the exit status: 1 if a target among them is unmet."""
    rows = list(rows)
    width = max(len(row["figure"]) for row in rows)
    print(f"{'':{width}}  {'min':>9} {'median':>9} {'max':>9}   target")
    for row in rows:
        said = {"yes": "met", "no": "NOT MET"}.get(row["met"], "")
        print(
            f"{row['figure']:{width}}  {row['min']:>9} {row['median']:>9} {row['max']:>9}   {row['target']:<8} {said}"
        )
    return int(any(row["met"] == "no" for row in rows))
