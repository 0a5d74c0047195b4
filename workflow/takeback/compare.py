"""Reference numbers: publish those of an experiment, and compare the results of another machine with them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from takeback.bits import ulp_distance
from takeback.evidence import EvidenceError, read_json, read_table, write_json

_VERDICT = ["cell", "verdict", "first_step", "first_state"]
_LEGS = ["reference", "killed", "resumed"]
_LOSS = ["leg", "step", "loss_dtype", "loss_bits", "loss"]
_SHOWN = 20  # lines of a kind; the rest is counted


def publish(experiment: Any, results: Path, runs: Path, reference: Path) -> None:
    """Write the reference numbers of an experiment into the folder ``reference``.

    ``verdicts.tsv`` (cell, verdict, first step and state, ids of its legs), ``losses.tsv`` (the bits of each loss
    of each uninterrupted and each resumed leg) and ``provenance.json`` (with the digest of the experiment): text,
    so that a change can be read in a diff; and the figures, for people.

    Args:
        experiment: takeback.experiment.Experiment.
        results: folder that holds a folder named like the experiment.
        runs: folder of the legs.

    Raises:
        EvidenceError: something is missing or broken, or the folder can't be written.
    """
    found = results / experiment.name
    verdicts, losses = _numbers(found, runs)
    provenance = read_json(found / "provenance.json")
    try:
        reference.mkdir(parents=True, exist_ok=True)
        verdicts.to_csv(reference / "verdicts.tsv", sep="\t", index=False)
        losses.to_csv(reference / "losses.tsv", sep="\t", index=False)
        hidden = shutil.ignore_patterns(".*")  # Snakemake's time stamp of a folder
        shutil.copytree(found / "figures", reference / "figures", dirs_exist_ok=True, ignore=hidden)
    except OSError as error:
        raise EvidenceError(f"{reference}: cannot be written: {error.strerror}") from None
    write_json(reference / "provenance.json", provenance)


def compare(results: Path, reference: Path, runs: Path | None = None) -> tuple[str, int]:
    """What agrees and what differs between results and published reference numbers, and why.

    Args:
        results: results/<experiment>.
        reference: a folder written by :func:`publish`.
        runs: folder of the legs; beside ``results`` if not given.

    Returns:
        Text, and 0 if all that both have agrees, or a difference in hardware, software or sources explains other
        bits, else 1. Another verdict is never explained: it has to hold everywhere. Where both have nothing in
        common, nothing was compared: one line that says so, and 1.

    Raises:
        EvidenceError: something is missing or broken.
    """
    verdicts, losses = _numbers(results, runs or results.parent / "runs")
    published_verdicts = _read(reference / "verdicts.tsv", [*_VERDICT, *_LEGS])
    published_losses = _read(reference / "losses.tsv", _LOSS)
    ours, theirs = (read_json(folder / "provenance.json") for folder in (results, reference))
    for what, a, b in (
        ("cell", published_verdicts.cell, verdicts.cell),
        ("cell that ran", _ran(published_verdicts), _ran(verdicts)),
        ("leg", published_losses.leg, losses.leg),
    ):
        if set(a).isdisjoint(b):
            return f"nothing was compared: no {what} is in both, of {a.nunique()} and {b.nunique()}", 1
    why = explanation(ours, theirs)
    lines = _stale(ours, theirs, verdicts, published_verdicts)
    lines += _only(published_verdicts.cell, verdicts.cell, "cells") + _only(published_losses.leg, losses.leg, "legs")
    told, other = _compare_verdicts(verdicts, published_verdicts)
    more, bits = _compare_losses(losses, published_losses)
    lines += told + more
    if bits:
        lines += [f"explained by: {reason}" for reason in why] or [
            "NOT explained: fingerprint and sources are the same"
        ]
    elif why:
        lines += [f"although another: {reason}" for reason in why]
    return "\n".join(lines), int(other or (bits and not why))


def explanation(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What differs and can change bits: fingerprint, facts and settings of the trainer, its sources."""
    reasons = []
    for section in ("fingerprint", "trainer", "flags"):
        a, b = theirs.get(section, {}), ours.get(section, {})
        reasons += [f"{key} {a.get(key)} → {b.get(key)}" for key in sorted({*a, *b}) if a.get(key) != b.get(key)]
    a, b = (one.get("source", {}).get("digests.trainer") for one in (theirs, ours))
    return reasons + ([f"sources of the trainer {a} → {b}"] if a != b else [])


def _numbers(results: Path, runs: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    verdicts = read_table(results / "verdicts.parquet", "verdicts")
    ran = verdicts[verdicts.verdict != "not-run"]
    legs = sorted({*ran.reference, *ran.resumed})
    tables = []
    for leg in legs:
        losses = read_table(runs / leg / "losses.parquet", "losses")
        losses = losses.sort_values(["step", "attempt", "rank"]).drop_duplicates("step", keep="first")
        tables.append(losses.assign(leg=leg)[_LOSS])
    return verdicts[[*_VERDICT, *_LEGS]], pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(
        columns=_LOSS
    )


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    try:
        found = pd.read_csv(path, sep="\t", keep_default_na=False, na_values=[""])
        return found[columns]
    except (OSError, ValueError, KeyError) as error:
        raise EvidenceError(f"{path}: no reference numbers can be read: {error}; publish them again") from None


def _compare_verdicts(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple[list[str], bool]:
    both = theirs.merge(ours, on="cell", suffixes=("_theirs", "_ours"))
    ran = both[(both.verdict_theirs != "not-run") & (both.verdict_ours != "not-run")]
    same = pd.Series(True, ran.index)
    for name in _VERDICT[1:]:
        a, b = ran[f"{name}_theirs"], ran[f"{name}_ours"]
        same &= (a.isna() & b.isna()) | (a == b).fillna(False).astype(bool)
    lines = [f"verdicts: {int(same.sum())} of {len(ran)} cells agree with their first step and state"]
    if len(both) > len(ran):
        lines.append(f"  {len(both) - len(ran)} cells did not run on both machines")
    for row in ran[~same].head(_SHOWN).to_dict("records"):
        words = [" ".join(str(row[f"{name}_{side}"]) for name in _VERDICT[1:] if pd.notna(row[f"{name}_{side}"]))
                 for side in ("theirs", "ours")]  # fmt: skip
        lines.append(f"  {row['cell']}: {words[0]} → {words[1]}")
    return lines, not same.all()


def _compare_losses(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple[list[str], bool]:
    legs = [leg for leg in theirs.leg.unique() if leg in set(ours.leg)]
    both = theirs.merge(ours, on=["leg", "step"], how="outer", suffixes=("_theirs", "_ours"), indicator=True)
    both = both[both.leg.isin(legs)]
    told = both._merge == "both"
    equal = told & (both.loss_bits_theirs == both.loss_bits_ours) & (both.loss_dtype_theirs == both.loss_dtype_ours)
    lines = [f"losses: {int(equal.sum()):,} of {len(both):,} have the same bits, in {len(legs)} legs"]
    different = both[~equal].sort_values("step", kind="stable")
    for leg, rows in list(different.groupby("leg", sort=False))[:_SHOWN]:
        first = rows.iloc[0]
        lines.append(f"  {leg}: from step {first.step} on, {len(rows)} losses; {_far(first)}")
    return lines, len(different) > 0


def _far(first: Any) -> str:
    if first._merge != "both":
        return "the reference has no such step" if first._merge == "right_only" else "the step is missing"
    if first.loss_dtype_theirs != first.loss_dtype_ours:
        return f"{first.loss_dtype_theirs} → {first.loss_dtype_ours}"
    bits = (np.array([int(value)]) for value in (first.loss_bits_theirs, first.loss_bits_ours))
    return f"there {int(ulp_distance(*bits, first.loss_dtype_ours)[0]):,} ULP"


def _ran(verdicts: pd.DataFrame) -> pd.Series:
    return verdicts.cell[verdicts.verdict != "not-run"]


def _stale(ours: Mapping[str, Any], theirs: Mapping[str, Any], mine: Any, published: Any) -> list[str]:
    """Whether the reference numbers are those of another experiment file, or of cells that were other runs."""
    a, b = (one.get("experiment", {}).get("digest") for one in (theirs, ours))
    lines = [f"published from another version of the experiment: digest {a} → {b}"] if a != b else []
    both = published.merge(mine, on="cell", suffixes=("_theirs", "_ours"))
    other = sum((both[f"{leg}_theirs"] != both[f"{leg}_ours"]) for leg in _LEGS) > 0
    if other.any():
        lines.append(
            f"{int(other.sum())} of {len(both)} cells in both are made of other legs: other settings or faults"
        )
    return lines


def _only(theirs: pd.Series, ours: pd.Series, what: str) -> list[str]:
    """How few are in both, if not all are."""
    counts = len({*theirs} & {*ours}), len({*theirs} - {*ours}), len({*ours} - {*theirs})
    if not any(counts[1:]):
        return []
    return [f"{what} in both: {counts[0]}; in the reference only: {counts[1]}; in the results only: {counts[2]}"]
