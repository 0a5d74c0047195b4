"""Digests of the package's sources, one a role: what an edit must re-run, and what it need not."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
SCHEMAS = "../schemas"
TABLES = tuple(f"{SCHEMAS}/{table}.schema.yaml" for table in ("losses", "ledger", "digests", "events"))
EVIDENCE = ("clock.py", "probe.py", "records.py", "evidence.py", "machine.py", *TABLES)
ROLES = {
    "trainer": ("trainers", "backends", "probe.py"),
    "nemesis": (
        "faults",
        "launchers",
        "network.py",
        "slurm.py",
        "cgroup.py",
        "pool.py",
        "pool_client.py",
        "leg_job.py",
        "environments.py",
        "leg.py",
        "objectstore.py",
        "document.py",
        "errors.py",
        f"{SCHEMAS}/hosts.schema.yaml",
        *EVIDENCE,
    ),
    "checkers": (
        "checkers",
        "verdicts.py",
        "parallel.py",
        "bits.py",
        "matrix.py",
        "against.py",
        "experiment.py",
        "document.py",
        "meaning.py",
        "evidence.py",
        f"{SCHEMAS}/verdicts.schema.yaml",
    ),
    "page": (
        "figures",
        "report.py",
        "sheet.py",
        "summary.py",
        "answer.py",
        "provenance.py",
        "bits.py",
        "evidence.py",
        "../report",
    ),
}


@cache
def digest(role: str) -> str:
    """16 hex digits over the names and bytes of the files of one role (trainer, nemesis, checkers, page)."""
    found = hashlib.sha256()
    for path in files(role):
        found.update(f"{path.name}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def files(role: str) -> list[Path]:
    """The files of one role, in a fixed order; caches and hidden files apart."""
    found = []
    for name in ROLES[role]:
        path = PACKAGE / name
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in inside if file.is_file() and "__pycache__" not in file.parts and file.name[0] != "."]
    return found


@cache
def environment() -> str:
    """The installed versions that can change a bit of the training, as ``torch 2.13.0, numpy 2.4.6``."""
    from importlib import metadata  # here, since each run's client would pay for it and needs only the digests

    found = []
    for name in ("torch", "numpy"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} missing")
    return ", ".join(found)
