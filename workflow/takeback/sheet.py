"""The facts of the provenance as half a page: what a reader asks first, and all the rest to be opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_TOLD = "not told"
Line = tuple[str, str]


def sheet(provenance: Mapping[str, Any]) -> list[Line]:
    """(name, text) of chip, dtype, shapes, bridge, versions, source, seeds, dataset and experiment.

    Args:
        provenance: as :func:`takeback.provenance.of_experiment` states it; what no leg told is said to be not told.
    """
    chip, host, software = (provenance.get(name, {}) for name in ("fingerprint", "host", "software"))
    facts = {k.removeprefix("facts."): v for k, v in provenance.get("trainer", {}).items() if k.startswith("facts.")}
    experiment = provenance["experiment"]
    hardware = provenance.get("hardware", {})
    device = chip.get("device", chip.get("cpu_model"))
    versions = (f"{name} {chip.get(name, software.get(name))}" for name in ("torch", "numpy", "python", "takeback")
                if chip.get(name, software.get(name)))  # fmt: skip
    return [
        ("chip", _join(device, chip.get("cpu_capability") and f"{chip['cpu_capability']} kernels",
                       chip.get("threads") and _threads(chip["threads"]),
                       host.get("cores") and f"{host['cores']} cores", provenance.get("fingerprints"))),
        *([("hardware", "; ".join(f"{runs}: {cells}" for runs, cells in hardware.items()))] if hardware else []),
        ("dtype", facts.get("dtype", NOT_TOLD)),
        ("shapes", _shapes(facts)),
        ("bridge", chip.get("bridge", NOT_TOLD)),
        ("versions", _join(*versions)),
        ("source", _source(provenance.get("source", {}))),
        ("seeds", experiment["seeds"]),
        ("dataset", _dataset(facts)),
        ("experiment", f"{experiment['name']}, digest {experiment['digest']}"),
    ]  # fmt: skip


def rest(provenance: Mapping[str, Any]) -> list[Line]:
    """(name, text) of every fact; dotted keys with the same beginning share one line."""
    lines: dict[str, list[str]] = {}
    for section in ("fingerprint", "host", "software", "source", "trainer", "flags"):
        for key, value in provenance.get(section, {}).items():
            words = key.split(".")
            deep = 0 if section != "trainer" else 2 if len(words) > 2 else 1
            lines.setdefault(".".join([section, *words[:deep]]), []).append(f"{'.'.join(words[deep:])} {value}".strip())
    return [(name, ", ".join(words)) for name, words in lines.items()]


def _join(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part) or NOT_TOLD


def _threads(count: str) -> str:
    return f"{count} {'thread' if count == '1' else 'threads'} a rank"


def _shapes(facts: Mapping[str, str]) -> str:
    """The shape of a micro-batch and the number of parameters; all shapes where they are few."""
    shapes = {k.removeprefix("shapes").lstrip("."): v for k, v in facts.items() if k.split(".")[0] == "shapes"}
    batch = shapes.get("micro_batch")
    few = [f"{name} {shape}".strip() for name, shape in shapes.items()] if len(shapes) < 4 else []
    count = facts.get("parameters")
    count = f"{int(count):,} parameters" if str(count).isdigit() else count and f"parameters {count}"
    return _join(*([f"micro-batch {batch}"] if batch else few), count)


def _dataset(facts: Mapping[str, str]) -> str:
    told = {k.removeprefix("dataset").lstrip("."): v for k, v in facts.items() if k.split(".")[0] == "dataset"}
    return _join(*(text if name in ("", "name") else f"{name} {text[:16]}" for name, text in told.items()))


def _source(facts: Mapping[str, str]) -> str:
    """Commit in words, and the digests of the sources by role."""
    commit = facts.get("commit", "None")
    words = "no commit" if commit == "None" else " | ".join(f"commit {one[:12]}" for one in commit.split(" | "))
    names = {"digests.trainer": "trainer", "digests.nemesis": "launcher and faults"}
    digests = (f"{name} {facts[key]}" for key, name in names.items() if key in facts)
    changed = "with changes since" if "True" in facts.get("modified", "") else ""
    return _join(words, changed, *digests)
