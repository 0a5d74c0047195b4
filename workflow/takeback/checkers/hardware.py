"""Hardware: all legs ran on the same chip, kernels, threads and library versions, or where a cell says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from takeback.bits import MAX_ULP
from takeback.checkers import state
from takeback.checkers.case import Case, LegView
from takeback.checkers.finding import Finding
from takeback.leg import USUAL_HARDWARE

#: Settings of a leg's hardware, and where its fingerprint says what its ranks really had.
MEASURED = {"capability": "cpu_capability", "threads": "threads"}


def check(case: Case) -> Finding:
    """Fingerprints are equal, but for what the cell changes on purpose, and are what the cell asks for.

    Other kernels give other bits (measured: AVX2 against AVX-512, one thread against two), so a
    difference between two machines says nothing about the resume.
    """
    prints = {role: leg.provenance.get("fingerprint") or {} for role, leg in case.roles.items()}
    bare = [role for role, known in prints.items() if not known]
    if bare:
        return Finding("invalid", f"no hardware fingerprint of the {bare[0]}: its provenance is incomplete")
    columns = {"ran_on": _words(prints["killed leg"]), "resumed_on": _words(prints["resumed leg"])}
    for role, leg in case.roles.items():
        if _has_no_bits(leg):
            continue
        strayed = _not_as_asked(leg, prints[role]) if _names_hardware(case) else ""
        if strayed:
            return Finding("invalid", f"the {role} did not run on the hardware that was asked for: {strayed}")
        purpose = {MEASURED[name] for name in MEASURED if _asked(leg, name) != _asked(case.reference, name)}
        chance = _changes(prints["reference"], prints[role], but=purpose)
        if chance:
            return Finding("invalid", f"hardware differs between reference and {role}: {chance}")
    changed = _on_purpose(case)
    compared = f"hardware changed on purpose ({changed})" if changed else "hardware fingerprints of all legs"
    return Finding(compared=compared, columns=columns)


def cause(case: Case, of_losses: Finding, of_data: Finding) -> str:
    """Why a resumed leg on other hardware differs, if it is that which explains it; else empty.

    It is if all that was saved is there again, bit for bit, right after the load, and the same samples went in; and if
    every step was done, with a number for a loss. How far apart the losses may then be is what experiments predict.
    """
    changed = _on_purpose(case)
    if not changed or of_data.verdict or of_losses.columns["max_ulp"] in (None, MAX_ULP):
        return ""
    loaded = state.of_load(case)
    if loaded is None or not loaded.compared or loaded.different:
        return ""
    return f"the state was restored bit for bit, and the hardware is another: {changed}"


def _on_purpose(case: Case) -> str:
    """In what the resumed leg's hardware, as measured, is another than the reference's."""
    return _changes(*(leg.provenance.get("fingerprint") or {} for leg in (case.reference, case.resumed)))


def _changes(expected: Mapping[str, Any], known: Mapping[str, Any], but: set[str] = frozenset()) -> str:
    keys = [key for key in {**expected, **known} if expected.get(key) != known.get(key) and key not in but]
    return "; ".join(f"{key} {expected.get(key)} → {known.get(key)}" for key in keys)


def _asked(leg: LegView, name: str) -> Any:
    return leg.spec.get("hardware", USUAL_HARDWARE).get(name)


def _names_hardware(case: Case) -> bool:
    """Whether the experiment asks for hardware; else a trainer may choose its own number of threads."""
    return any(leg.spec.get("hardware", USUAL_HARDWARE) != USUAL_HARDWARE for leg in (case.reference, case.resumed))


def _not_as_asked(leg: LegView, known: Mapping[str, Any]) -> str:
    wishes = {key: str(_asked(leg, name) or "").upper() for name, key in MEASURED.items()}
    unmet = [key for key, wish in wishes.items() if wish and str(known.get(key)).upper() != wish]
    return "; ".join(f"{key} {known.get(key)} instead of {wishes[key]}" for key in unmet)


def _words(known: Mapping[str, Any]) -> str:
    """``AVX2 kernels, 1 thread``."""
    threads = str(known.get("threads"))
    return f"{known.get('cpu_capability')} kernels, {threads} thread{'' if threads == '1' else 's'}"


def _has_no_bits(leg: LegView) -> bool:
    """Whether it was struck before it had anything to compare; its ranks may not have told their hardware yet."""
    return not (len(leg.losses.steps) or len(leg.states.keys))
