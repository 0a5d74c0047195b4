"""Provenance: on what a leg ran, and which comparisons an experiment really made.

A fingerprint holds what changes the bits of a kernel; two legs with the same fingerprint, source and
settings are expected to have the same bits, and nothing else is.
"""

from __future__ import annotations

import csv
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from takeback import machine
from takeback.evidence import read_json, write_json
from takeback.leg import digest

if TYPE_CHECKING:
    import pandas as pd

_FLAGS = re.compile(
    r"(OMP|MKL|KMP|ATEN|CUBLAS|CUDA|CUDNN|NVIDIA|NCCL|GLOO|TORCH|XLA|TPU|JAX|LIBTPU|PYTHONHASHSEED)(_|$)"
)


def of_leg(spec: Mapping[str, Any], described: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Facts of one leg, to be asked for in the process that launched it, after its ranks have ended.

    Args:
        spec: the leg as in ``leg.json``.
        described: what its trainer told by ``probe.describe``.
        environment: variables that its ranks were started with.
    """
    settings = spec["trainer"].get("settings", {})
    facts = {
        "fingerprint": machine.fingerprint(spec, described, environment),
        "host": {"os": platform.platform(), "machine": platform.machine(), "cores": str(os.cpu_count())},
        "software": machine.software(),
        "source": machine.source(),
        "trainer": {"facts": dict(described), "settings": dict(settings)},
        "flags": {k: v for k, v in sorted(environment.items()) if _FLAGS.match(k)}
        | {name: told for name, told in _bridge(described).items() if "deterministic" in name or "tf32" in name},
    }
    return {**facts, "id": digest(facts, 16)}


def _bridge(described: Mapping[str, Any]) -> Mapping[str, Any]:
    told = described.get("bridge")
    return told if isinstance(told, Mapping) else {}


def of_experiment(experiment: Any, verdicts: pd.DataFrame, legs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Half a page on an experiment: what all its legs share, where they differ, what was compared.

    Args:
        experiment: takeback.experiment.Experiment.
        verdicts: one row a cell; the column ``comparison`` tells what was really compared.
        legs: provenance of each leg that ran (:func:`of_leg`); empty ones are skipped.
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
        "fingerprints": "no leg ran" if not flat else "the same in all legs" if not differ
        else "the legs DIFFER in " + ", ".join(key.partition(".")[2] for key in differ),
        **shared,
    }  # fmt: skip
    return {**found, "id": digest(found, 16)}


_ONE = r"\d[\d,]*\d|\d"
_NUMBERS = re.compile(rf"(?<![\w.-])(?:{_ONE})(?:[\u2013-]\d+)?(?:, \d+(?:-\d+)?)*(?![\w.])")


def comparisons(verdicts: pd.DataFrame) -> list[dict[str, Any]]:
    """The comparisons that were made, from the column ``comparison``; what differs in numbers alone becomes one.

    Each is ``{"cells": how many, "comparison": which sides, "parts": [{"cells", "comparison"}, …]}``, the most
    frequent first; a number that varies from cell to cell is given by its values or its range.
    """
    sides: dict[str, list[tuple[str, str]]] = {}
    for text in verdicts.comparison.dropna():
        # "same topology, gloo: resumed leg (world 2) against …: fault receipts of …; losses of …; …"
        topology, _, rest = text.partition(": ")
        which, _, what = rest.partition(": ")
        head = f"{topology}: {which}" if which else topology
        sides.setdefault(_NUMBERS.sub("\0", head), []).append((head, what))
    found = []
    for pairs in sides.values():
        parts: dict[str, list[str]] = {}
        for clause in (clause for _, what in pairs for clause in what.split("; ") if clause):
            singular = re.sub(r"(?<=[a-z])s\b", "", _NUMBERS.sub("\0", clause))
            parts.setdefault(singular, []).append(clause)
        head = _merge([head for head, _ in pairs])
        found.append({"cells": len(pairs), "comparison": head, "parts": [
            {"cells": len(clauses), "comparison": _merge(clauses)} for clauses in parts.values()]})  # fmt: skip
    return sorted(found, key=lambda one: -one["cells"])


def _merge(texts: list[str]) -> str:
    """One text for several that differ in numbers alone (and in the plurals that go with them)."""
    spans = [_span(slot) for slot in zip(*(_NUMBERS.findall(text) for text in texts), strict=True)]
    pieces = _NUMBERS.split(max(texts, key=len))
    return "".join(piece + span for piece, span in zip(pieces, [*spans, ""], strict=True))


def _span(values: tuple[str, ...]) -> str:
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
