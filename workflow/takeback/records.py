"""From the append-only records of the processes to the tables of evidence."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENVELOPE = ("kind", "pid", "mono", "wall", "step", "point")
SUPERVISOR = -1


DIGEST_COLUMNS = ("attempt", "rank", "moment", "step", "order", "name", "dtype", "shape", "digest")


def tables(folder: Path) -> dict[str, Any]:
    """Rows of ``losses``, ``ledger`` and ``events``, columns of ``digests``, from the record files in a folder.

    Nearly all of the evidence is digests: as rows they would cost the supervisor more than all else.

    A line that was cut, by the end of its process or by a full disk, is dropped, and an event ``torn_record`` says so.
    """
    rows: dict[str, Any] = {"losses": [], "ledger": [], "events": []}
    digests: dict[str, list[Any]] = {column: [] for column in DIGEST_COLUMNS}
    groups = Groups(folder)
    for path in sorted(folder.glob("*.jsonl")):
        who = {"rank": SUPERVISOR}
        if name := re.fullmatch(r"attempt(\d+)-rank(\d+)(-pid\d+)?", path.stem):
            who = {"rank": int(name[2]), "attempt": int(name[1])}
        first_step = True
        for record in lines(path):
            owner = who | {"attempt": groups.of(record, who.get("attempt"))}
            match record["kind"]:
                case "step":
                    if first_step:
                        rows["events"].append(event(owner, {**record, "kind": "first_step"}, bare=True))
                        first_step = False
                    add_step(rows, owner, record)
                case "digest":
                    add_digests(digests, owner, record)
                case _:
                    rows["events"].append(event(owner, record))
    rows["events"].sort(key=lambda row: row["monotonic"])
    return {**rows, "digests": digests}


class Groups:
    """Which worker group a record is of: attempts of a leg are numbered by its groups, in the order of their launch.

    A rank's own count is that of its agent, which others may not share; so the supervisor's word counts, by pid.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "supervisor.jsonl"
        told = [record for record in lines(path) if record["kind"] == "launched"] if path.exists() else []
        self.of_pid = {record.get("of_pid"): record["attempt"] for record in told}
        self.launched = sorted((record["mono"], record["attempt"]) for record in told)

    def of(self, record: dict[str, Any], own: int | None) -> int:
        """Of a rank, the group of its process, or its ``own`` count; of the supervisor, the one it names or the last.

        Takes the attempt out of the record.
        """
        named = record.pop("attempt", None)
        if own is not None:
            return self.of_pid.get(record["pid"], own)
        if named is not None:
            return named
        return max((attempt for mono, attempt in self.launched if mono <= record["mono"]), default=0)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one file; a torn one becomes a ``torn_record``."""
    last: dict[str, Any] = {"pid": 0, "mono": 0.0, "wall": 0.0}
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            record = json.loads(line)
            if not line.endswith(b"\n"):
                raise ValueError("no end of line")
        except ValueError:
            yield {**{key: last[key] for key in ("pid", "mono", "wall")}, "kind": "torn_record", "bytes": len(line)}
            continue
        last = record
        yield dict(record)


def event(owner: dict[str, int], record: dict[str, Any], bare: bool = False) -> dict[str, Any]:
    detail = {} if bare else {key: value for key, value in record.items() if key not in ENVELOPE}
    return {
        **owner,
        "pid": record["pid"],
        "monotonic": record["mono"],
        "wall": record["wall"],
        "kind": record["kind"],
        "step": record.get("step"),
        "point": record.get("point"),
        "detail": json.dumps(detail),
    }


def add_step(rows: dict[str, list[dict[str, Any]]], owner: dict[str, int], record: dict[str, Any]) -> None:
    ids, at = record["samples"], {**owner, "step": record["step"], "epoch": record["epoch"]}
    rows["ledger"].append({**at, "sample_ids": ids})
    rows["losses"].append(
        {
            **at,
            "micro_batches": record["micro_batches"],
            "loss": float_of(record["loss_bits"], record["loss_dtype"]),
            "loss_bits": record["loss_bits"],
            "loss_dtype": record["loss_dtype"],
            "lr": record["lr"],
            "grad_norm": record["grad_norm"],
            "grad_norm_bits": record["grad_norm_bits"],
            "samples": hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16],
        }
    )


def add_digests(digests: dict[str, list[Any]], owner: dict[str, int], record: dict[str, Any]) -> None:
    count = len(record["entries"])
    for column, value in {**owner, "moment": record["moment"], "step": record["step"]}.items():
        digests[column] += [value] * count
    digests["order"] += range(count)
    for column, values in zip(("name", "dtype", "shape", "digest"), zip(*record["entries"], strict=True), strict=False):
        digests[column] += values


def float_of(bits: int, dtype: str) -> float:
    integer, real = {"float32": ("i", "f"), "float64": ("q", "d")}[dtype]
    return struct.unpack(real, struct.pack(integer, bits))[0]
