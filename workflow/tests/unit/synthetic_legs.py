"""Hand-made evidence and provenance of the legs of a synthetic experiment."""

from __future__ import annotations

import json
import math
import struct
from itertools import product
from types import SimpleNamespace as Record
from typing import Any

import pandas as pd
from synthetic import STEPS, restored_step
from takeback.experiment import Experiment
from takeback.leg import Leg

FACTS = {"dataset": "3f1c5a7b9d2e4f60", "dtype": "float32", "shapes": "8 x 2 x 32", "seed": 1234}
FINGERPRINT = {
    "cpu_model": "Example CPU @ 2.1 GHz",
    "cpu_capability": "AVX512",
    "threads": "1",
    "python": "3.11.2",
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "backend": "gloo",
}


def evidence_of(asked: Experiment, frame: pd.DataFrame):
    """A function from leg id to evidence in the documented columns; legs of cells that did not run are empty."""
    found = {}
    for one, row in zip(asked.cells, frame.itertuples(), strict=True):
        ran = row.verdict != "not-run"
        start = restored_step(one.axes["kill_step"], one.axes["point"])
        for part in (one.reference, one.twin):
            found[part.id] = _evidence(part, 1, STEPS, ran)
        found[one.killed.id] = _evidence(
            one.killed, 1, one.axes["kill_step"], ran, fired=(one.axes["kill_step"], one.axes["point"])
        )
        off = int(row.first_step) if pd.notna(row.first_loss_step) else None
        found[one.resumed.id] = _evidence(one.resumed, start + 1, STEPS, ran, restored=start, off=off)
    return found.__getitem__


def _evidence(
    part: Leg, first: int, last: int, ran: bool, *, fired=None, restored: int | None = None, off: int | None = None
) -> Record:
    losses, events = [], []
    for rank, step in product(range(part.world if ran else 0), range(first, last + 1)):
        value = 5.4 * math.exp(-step / 14) + 0.12 * math.sin(step * 1.7) + 0.4
        bits = struct.unpack("i", struct.pack("f", value))[0]
        if off is not None and step >= off:
            bits += 3 ** (step - off + 3)
        losses.append(
            {
                "attempt": 0,
                "rank": rank,
                "step": step,
                "epoch": (step - 1) // 8,
                "micro_batches": 4,
                "loss": struct.unpack("f", struct.pack("i", bits))[0],
                "loss_bits": bits,
                "loss_dtype": "float32",
                "lr": 3e-3,
                "grad_norm": 1.0,
                "grad_norm_bits": 0,
                "samples": "00",
            }
        )
    if ran and restored is not None:
        events += [_event(rank, "restored", restored, None, {"epoch": 0}) for rank in range(part.world)]
    if ran and fired:
        victims = {"fault": "0", "action": "sigkill", "victims": [{"rank": part.world - 1, "pid": 7}]}
        events.append(_event(-1, "fault_fired", fired[0], fired[1], victims))
    if not ran:
        events.append(_event(-1, "not_run", None, None, {"reason": "no CUDA device"}))
    columns = [
        "attempt",
        "rank",
        "step",
        "epoch",
        "micro_batches",
        "loss",
        "loss_bits",
        "loss_dtype",
        "lr",
        "grad_norm",
        "grad_norm_bits",
        "samples",
    ]
    return Record(
        leg_id=part.id,
        spec=part.spec,
        losses=pd.DataFrame(losses, columns=columns),
        events=pd.DataFrame(events, columns=list(_event(0, "", 0, None, {}))),
        provenance=provenance(part) if ran else {},
    )


def _event(rank: int, kind: str, step: int | None, point: str | None, detail: dict) -> dict:
    return {
        "attempt": 0,
        "rank": rank,
        "pid": 7,
        "monotonic": 1.0,
        "wall": 1.8e9,
        "kind": kind,
        "step": step,
        "point": point,
        "detail": json.dumps(detail),
    }


def provenance(part: Leg, **fingerprint: str) -> dict:
    """Facts of one leg as ``takeback.machine.of_leg`` states them."""
    return {
        "fingerprint": {**FINGERPRINT, **fingerprint},
        "host": {"os": "Linux", "cores": "2", "machine": "x86_64"},
        "software": {"torch": "2.13.0"},
        "source": {"commit": None, "modified": None, "digests": {"trainer": "aa", "checkers": "bb"}},
        "trainer": {"facts": FACTS, "settings": part.trainer["settings"]},
        "flags": {"OMP_NUM_THREADS": "1"},
        "id": "0123456789abcdef",
    }


def write_legs(asked: Experiment, frame: pd.DataFrame, runs: Any) -> None:
    """Write losses.parquet and provenance.json of each leg below the folder ``runs``."""
    find = evidence_of(asked, frame)
    for name in sorted({part.id for one in asked.cells for part in one.legs}):
        (runs / name).mkdir(parents=True, exist_ok=True)
        find(name).losses.to_parquet(runs / name / "losses.parquet")
        (runs / name / "provenance.json").write_text(json.dumps(find(name).provenance))
