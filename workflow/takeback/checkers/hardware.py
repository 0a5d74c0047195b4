"""Hardware: all legs ran on the same chip, kernels, threads and library versions."""

from __future__ import annotations

from takeback.checkers.case import Case, LegView
from takeback.checkers.finding import Finding


def check(case: Case) -> Finding:
    """Fingerprints are equal, or the cell changes the hardware on purpose (axis ``resume_hardware``).

    Other kernels give other bits (measured: AVX2 against AVX-512, one thread against two), so a
    difference between two machines says nothing about the resume.
    """
    prints = {role: leg.provenance.get("fingerprint") or {} for role, leg in case.roles.items()}
    bare = [role for role, known in prints.items() if not known]
    if bare:
        return Finding("invalid", f"no hardware fingerprint of the {bare[0]}: its provenance is incomplete")
    expected = prints["reference"]
    for role, known in prints.items():
        if _told_nothing(case.roles[role]):
            continue  # struck before it could tell its backend, and before it had a bit to compare
        keys = [key for key in {**expected, **known} if expected.get(key) != known.get(key)]
        if not keys:
            continue
        changes = "; ".join(f"{key} {expected.get(key)} → {known.get(key)}" for key in keys)
        if role == "resumed leg" and case.cell.axes.get("resume_hardware") is not None:
            return Finding(compared=f"hardware changed on purpose ({changes})")
        return Finding("invalid", f"hardware differs between reference and {role}: {changes}")
    return Finding(compared="hardware fingerprints of all legs")


def _told_nothing(leg: LegView) -> bool:
    return not (leg.events("described") or len(leg.losses.steps) or len(leg.states.keys))
