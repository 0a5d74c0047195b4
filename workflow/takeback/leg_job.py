"""The job of one leg: prepare its folder, launch it, turn its records into evidence, seal it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from takeback import backends, clock, environments, evidence, faults, launchers, machine, objectstore, records
from takeback.errors import EvidenceError
from takeback.launchers.recorder import Recorder

NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


def run(spec: dict[str, Any], folder: Path, root: Path, bound: Sequence[int] = ()) -> None:
    """Run the leg that ``spec`` describes, in ``folder``; end when one of the descriptors ``bound`` becomes readable.

    A trainer that crashes, hangs or is killed is a result, not an error of this function.

    Raises:
        EvidenceError: the folder can't be written, or the parent's evidence can't be read.
    """
    try:
        prepare(spec, folder)
        recorder = Recorder(folder / "records")
        backend = backends.get(spec["backend"])
        environment = {**backends.environment(spec), **threads(spec), **kernels(spec)}
        os.environ.update(environment)  # before torch is imported: that is when they are read
        reason = why_not(spec, folder, backend)
        if reason:
            recorder("not_run", attempt=0, reason=reason)
            if environments.not_in(backend.ENVIRONMENT):
                (folder / clock.MARK).touch()  # it may be there for the next call
        else:
            launchers.get(spec["launcher"]).launch(spec, folder, root, recorder, bound)
        seal(spec, folder, environment)
    except OSError as error:
        if error.errno not in NO_PLACE:
            raise
        raise EvidenceError(f"{error.filename or folder}: {error.strerror}; free space or make it writable") from error


def prepare(spec: dict[str, Any], folder: Path) -> None:
    """An empty leg folder with the leg's own copy of its parent's checkpoints."""
    if folder.exists():
        shutil.rmtree(folder)
    for name in ("records", "stdout"):
        (folder / name).mkdir(parents=True)
    checkpoints = folder / "checkpoints"
    if spec["parent"]:
        shutil.copytree(folder.parent / spec["parent"] / "checkpoints", checkpoints, copy_function=objectstore.copy)
    else:
        checkpoints.mkdir()
    evidence.write_json(folder / "leg.json", spec)


def threads(spec: dict[str, Any]) -> dict[str, str]:
    """Variables that are read when torch is imported."""
    many = spec["hardware"]["threads"]
    found = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(many))
    # Threads that spin while they wait keep those that they wait for from their core, where cores are few.
    return found | ({"OMP_WAIT_POLICY": "passive"} if many > 1 else {})


#: The same for the hardware that a leg has unless it says otherwise.
IMPORT_TIME = threads({"hardware": {"threads": 1}})


def kernels(spec: dict[str, Any]) -> dict[str, str]:
    """Variables that are read when torch first chooses a kernel, once a process (ATen/native/DispatchStub.cpp).

    An import chooses none, so forks of a clean process may each have others: none of it may ask which it has.
    """
    wish = spec["hardware"].get("capability")
    return {"ATEN_CPU_CAPABILITY": wish} if wish else {}


def why_not(spec: dict[str, Any], folder: Path, backend: Any) -> str | None:
    """The reason why this leg can't run here or now, or its parent could not."""
    if spec["parent"]:
        for row in evidence.read_rows(folder.parent / spec["parent"] / "events.parquet", "events"):
            if row["kind"] == "not_run":
                return json.loads(row["detail"])["reason"]
    if clock.left() <= 0:
        return clock.REASON
    if reason := environments.not_in(backend.ENVIRONMENT):
        return reason
    lacking = machine.lacks(spec["hardware"].get("capability", "default"))
    if spec["trainer"].get("store") == "object":
        lacking = lacking or objectstore.unavailable(folder / "checkpoints")
    here = lacking or backend.unavailable(launchers.ranks_here(spec)) or faults.unavailable(spec["faults"])
    return here or launchers.unavailable(spec["launcher"])


def seal(spec: dict[str, Any], folder: Path, environment: dict[str, str]) -> None:
    """Write the evidence; then no file of the leg is written any more."""
    rows = records.tables(folder / "records")
    told = [(row["kind"], json.loads(row["detail"])) for row in rows["events"] if row["kind"] in machine.TOLD_IN]
    described = [detail["facts"] for kind, detail in told if kind == "described"]
    measured = [machine.bridge(detail.get("facts", {"bridge": detail})) for _, detail in told]
    facts = machine.of_leg(spec, described[0] if described else {}, environment, measured)
    evidence.write_json(folder / "provenance.json", facts)
    if any(row["kind"] == "not_run" and json.loads(row["detail"])["reason"] == clock.REASON for row in rows["events"]):
        (folder / clock.MARK).touch()
    for table in evidence.TABLES:  # events last: it says that the leg is whole
        evidence.write_table(
            folder / f"{table}.parquet",
            table,
            rows[table],
            {"takeback.provenance": facts["id"], "takeback.leg": folder.name},
        )
    print(account(rows["events"]))
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))


def account(events: list[dict[str, Any]]) -> str:
    """What happened in a run, for its log: what was struck, what was restored, how each rank ended."""
    lines = []
    for row in events:
        detail = json.loads(row["detail"])
        match row["kind"]:
            case "not_run":
                lines.append(f"not run: {detail['reason']}")
            case "restored":
                lines.append(f"rank {row['rank']}: restored step {row['step']}")
            case "damaged":
                lines.append(f"rank {row['rank']}: damaged: {detail['reason']}")
            case "fault_fired":
                ranks = ", ".join(str(victim["rank"]) for victim in detail["victims"])
                whom = f"rank {ranks}" if ranks else "what the ranks left"
                lines.append(f"{detail['action']} of {whom} at point {row['point']} of step {row['step']}")
            case "error":
                lines.append(f"rank {row['rank']}: {detail['type']}: {detail['text']}")
            case "refused":
                lines.append(f"rank {row['rank']}: refused: {detail['reason']}")
            case "hang_detected":
                lines.append(f"hung: rank {', '.join(map(str, detail['ranks']))}")
            case "exited":
                end = f"status {detail['status']}" if detail["signal"] is None else f"signal {detail['signal']}"
                lines.append(f"rank {detail['of_rank']}: ended with {end}, by {detail['by']}")
    return "\n".join(lines)
