"""Provenance: what all legs of an experiment share, where they differ, and which comparisons were really made."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from takeback.answer import listing
from takeback.evidence import read_json, write_json
from takeback.leg import digest

if TYPE_CHECKING:
    import pandas as pd


def of_experiment(experiment: Any, verdicts: pd.DataFrame, legs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Half a page on an experiment: what all its legs share, where they differ, what was compared.

    Args:
        experiment: takeback.experiment.Experiment.
        verdicts: one row a cell; the column ``comparison`` tells what was really compared.
        legs: provenance of each leg that ran (:func:`takeback.machine.of_leg`); empty ones are skipped.
    """
    flat = [{k: v for k, v in flatten(leg).items() if k != "id"} for leg in legs if leg]
    values: dict[str, Counter] = {}
    for leg in flat:
        for key, value in leg.items():
            values.setdefault(key, Counter())[str(value)] += 1
    shared: dict[str, dict[str, str]] = {}
    for key, counts in values.items():
        section, _, name = key.partition(".")
        text = " | ".join(sorted(counts))
        shared.setdefault(section, {})[name] = text if len(text) < 200 else f"{len(counts)} values"
    differ = [key for key, counts in values.items() if key.startswith("fingerprint.") and len(counts) > 1]
    seeds = sorted({str(v) for leg in flat for k, v in leg.items() if k.startswith("trainer.") and k.endswith(".seed")})
    found = {
        "experiment": {
            "name": experiment.name,
            "question": experiment.question,
            "digest": experiment.digest,
            "cells": len(verdicts),
            "legs that ran": len(flat),
            "seeds": ", ".join(seeds) or "not told",
        },
        "comparisons": comparisons(verdicts),
        "fingerprints": "no run took place" if not flat else "the same in all runs" if not differ
        else "the runs DIFFER in " + ", ".join(key.partition(".")[2] for key in differ),
        "hardware": hardware(verdicts),
        **shared,
    }  # fmt: skip
    return {**found, "id": digest(found, 16)}


def hardware(verdicts: pd.DataFrame) -> dict[str, str]:
    """What the runs had, before the fault and after it, and in how many cells; nothing where none told it."""
    told = verdicts[["ran_on", "resumed_on"]].dropna()
    pairs = Counter((before, after) for before, after in told.itertuples(index=False))
    return {
        f"run on {before}, resumed on {'the same' if after == before else after}": _cells(many)
        for (before, after), many in pairs.items()
    }


_ONE = r"\d[\d,]*\d|\d"
_NUMBERS = re.compile(rf"(?<![\w.-])(?:{_ONE})(?:[\u2013-]\d+)?(?:, \d+(?:-\d+)?)*(?![\w.])")
_REFERENCE = {
    "same topology": "the uninterrupted run at the same world",
    "changed topology, fixed-order reduction": "the uninterrupted run at the world before the kill, with"
    " gradients added in a fixed order",
    "changed topology, handover control": "an uninterrupted run whose state is moved to the new world in memory",
}


def comparisons(verdicts: pd.DataFrame) -> list[dict[str, Any]]:
    """The comparisons that were made: in words, one entry a kind of topology and backend, most cells first.

    Each is ``{"cells": how many, "words": one or two sentences, "parts": [{"cells", "comparison"}, …]}``. The
    parts are the clauses of the column ``comparison``; those that differ in numbers alone become one, and a
    number that varies from cell to cell is given by its values or its range.

    Args:
        verdicts: one row a cell (workflow/schemas/verdicts.schema.yaml).
    """
    # "same topology, gloo: resumed leg (world 2) against …: fault receipts of …; losses of …; …"
    heads = verdicts.comparison.fillna("nothing was compared").str.split(": ", n=1).str[0]
    found = []
    for head, cells in verdicts.groupby(heads, sort=False):
        clauses: dict[str, list[str]] = {}
        for text in cells.comparison.dropna():
            for clause in text.split(": ", 2)[-1].split("; ") if ": " in text else ():
                singular = re.sub(r"(?<=[a-z])s\b", "", _NUMBERS.sub("\0", clause))
                clauses.setdefault(singular, []).append(clause)
        words = _words(str(head), cells, [clause for same in clauses.values() for clause in same])
        parts = [{"cells": len(same), "comparison": _merge(same)} for same in clauses.values()]
        found.append({"cells": len(cells), "words": words, "parts": parts})
    return sorted(found, key=lambda one: (not one["parts"], -one["cells"]))


def _words(head: str, cells: pd.DataFrame, clauses: list[str]) -> str:
    """The comparison of one kind as a sentence or two, from what the cells say that they compared."""
    many, controls = len(cells), int(cells.control.notna().sum())
    count = _cells(many)
    if not clauses:
        reasons = list(dict.fromkeys(cells.diagnosis.str.removeprefix("not run: ").str.rstrip(".")))
        return f"In {count} nothing was compared: {'; '.join(reasons[:2])}{'; …' if len(reasons) > 2 else ''}."
    kind, _, backend = head.rpartition(", ")
    worlds = re.findall(r"resumed leg \(world (\d+)\)", "\n".join(cells.comparison))
    dtypes = listing(dict.fromkeys(re.findall(r"^losses of .* as (.+?) bits", "\n".join(clauses), re.M)))
    done = (
        (f"{cells.steps_compared.sum():,} losses as {dtypes or 'unknown'} bits", cells.steps_compared > 0),
        (f"{cells.states_compared.sum():,} state digests by name", cells.states_compared > 0),
        ("the samples of every step", cells.samples_equal.notna()),
    )
    what = [
        words + ("" if there.sum() == many else f" (in {_cells(there.sum())})") for words, there in done if there.any()
    ]
    twins = sum(clause.startswith("twin with reference") for clause in clauses)
    first = "" if twins == many else f" in {_cells(twins)}"
    return (
        f"{kind[:1].upper()}{kind[1:]} on {backend}, {count}"
        + (f", {controls} of them {'a negative control' if controls == 1 else 'negative controls'}" if controls else "")
        + f": the run resumed{' at world ' + _span(worlds) if worlds else ''} was compared with "
        + f"{_REFERENCE.get(kind, 'the uninterrupted run')}: {listing(what) or 'receipts only'}."
        + (f" Before that, two uninterrupted runs were compared with each other{first}." if twins else "")
    )


def _cells(number: int) -> str:
    return f"{number:,} cell{'' if number == 1 else 's'}"


def _merge(texts: list[str]) -> str:
    """One text for several that differ in numbers alone (and in the plurals that go with them)."""
    spans = [_span(slot) for slot in zip(*(_NUMBERS.findall(text) for text in texts), strict=True)]
    pieces = _NUMBERS.split(max(texts, key=len))
    return "".join(piece + span for piece, span in zip(pieces, [*spans, ""], strict=True))


def _span(values: Iterable[str]) -> str:
    """``4``, ``1, 2 or 4``, ``120 … 480``."""
    distinct = sorted(set(values), key=lambda text: [int(n) for n in re.findall(r"\d+", text.replace(",", ""))])
    if len(distinct) < 2 or len(distinct) > 5:
        return " … ".join(dict.fromkeys((distinct[0], distinct[-1])))
    return ", ".join(distinct[:-1]) + " or " + distinct[-1]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key → leaf of nested mappings and lists; a list of numbers alone is a leaf such as ``2 x 32``."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list) and not all(isinstance(one, int) for one in value):
        items = enumerate(value)
    else:
        return {prefix: " x ".join(map(str, value)) if isinstance(value, list) else value}
    found: dict[str, Any] = {}
    for key, inner in items:
        found.update(flatten(inner, f"{prefix}.{key}" if prefix else str(key)))
    return found


def write(provenance: Mapping[str, Any], folder: Path) -> None:
    """Write ``provenance.json`` and ``provenance.tsv`` (section, key, value) into ``folder``."""
    write_json(folder / "provenance.json", provenance)
    rows = [(*key.partition(".")[::2], value) for key, value in flatten(provenance).items()]
    with (folder / "provenance.tsv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, "excel-tab", lineterminator="\n").writerows([("section", "key", "value"), *rows])


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, value in a, value in b) of each fact in which two provenances differ; None where it is missing."""
    left, right = flatten(a), flatten(b)
    keys = [key for key in {**left, **right} if key != "id"]
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def diff_files(a: Path, b: Path) -> tuple[str, int]:
    """The difference of two provenance files as text, and the exit status: 1 if there is one.

    Raises:
        EvidenceError: a file that can't be read.
    """
    rows = diff(read_json(a), read_json(b))
    if not rows:
        return f"{a} and {b} state the same facts", 0
    lines = [f"--- {a}", f"+++ {b}"]
    for key, left, right in rows:
        lines += [key, f"  - {left}", f"  + {right}"]
    return "\n".join(lines), 1
