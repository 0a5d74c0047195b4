"""Evidence of runs that never took place, in the format of those that did: for measuring what reads it, by number.

Losses and state depend on the seed and the step alone, samples are dealt out to the ranks: so all legs of a cell
agree, at every world size, and a cell is ``equal`` unless its resumed leg forgets the optimizer.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from takeback import bits, evidence
from takeback.leg import Leg

#: Entries of the state, named as the reference trainer names its own: 109 of them.
PARTS = [
    f"{module}.{kind}"
    for module in ("token", "position", *(f"blocks.{b}.{p}" for b in (0, 1) for p in ("norm", "qkv", "out", "up")))
    for kind in ("weight", "bias")
]
GROUPS = ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq", "optimizer.step", "ema")
SINGLE = ("optimizer.group.0.lr", "schedule.last_step", "sampler.epoch", "sampler.position", "rng.torch", "rng.python")
STATE = [f"{group}.{part}" for group in GROUPS for part in PARTS] + [*SINGLE, "best.loss", "best.step", "step"]
FACTS = {"dataset": {"name": "synthetic", "bytes": 4609, "sha256": "0" * 64}, "dtype": "float32", "parameters": 30000}


def write(leg: Leg, runs: Path) -> None:
    """Write the evidence of ``leg`` into its folder below ``runs``; no fsync, as it can be made again."""
    settings, folder = leg.trainer["settings"], runs / leg.id
    folder.mkdir(parents=True, exist_ok=True)
    start = newest_save(leg.parent, settings) if leg.parent else 0
    last = leg.faults[0]["step"] if leg.faults else settings["steps"]
    seed = int(settings["seed"])
    lost = settings.get("forget", "none") == "optimizer" and leg.parent is not None
    for table, made in {
        "losses": losses(leg.world, start, last, seed, settings),
        "ledger": ledger(leg.world, start, last, seed, settings),
        "digests": digests(leg.world, moments(leg, start, last), seed, lost),
        "events": events(leg, start, last),
    }.items():
        pq.write_table(made, folder / f"{table}.parquet")
    for name, value in (("leg.json", leg.spec), ("provenance.json", provenance(leg))):
        (folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def newest_save(killed: Leg, settings: dict[str, Any]) -> int:
    """Step of the checkpoint that a leg leaves behind which is killed before it saves its step."""
    return (killed.faults[0]["step"] - 1) // settings["save_every"] * settings["save_every"]


def moments(leg: Leg, start: int, last: int) -> list[tuple[str, int]]:
    """At the load, at each save and at the end."""
    every = leg.trainer["settings"]["save_every"]
    saves = range(start + every, last + 1 if not leg.faults else last, every)
    return [("loaded", start), *(("saved", step) for step in saves), *([] if leg.faults else [("end", last)])]


def losses(world: int, start: int, last: int, seed: int, settings: dict[str, Any]) -> pa.Table:
    step, rank = by_rank(world, start, last)
    loss = np.float32(3 * 0.97**step + seed / 1000)
    norm = np.float32(1 + 1 / step)
    return table(
        "losses",
        rank=rank,
        step=step,
        epoch=epochs(step, settings),
        micro_batches=np.full(len(step), settings["shards"] // world),
        loss=loss.astype(float),
        loss_bits=bits.bits_of(loss, "float32"),
        loss_dtype=np.full(len(step), "float32"),
        lr=3e-3 * 0.99**step,
        grad_norm=norm.astype(float),
        grad_norm_bits=bits.bits_of(norm, "float32"),
        samples=hexes(step.astype(np.uint64) * np.uint64(world) + rank.astype(np.uint64)),
    )


def ledger(world: int, start: int, last: int, seed: int, settings: dict[str, Any]) -> pa.Table:
    step, rank = by_rank(world, start, last)
    size, samples = settings["shards"] * settings["batch"], settings["samples"]
    shuffled = np.stack(
        [np.random.default_rng((seed, e)).permutation(samples) for e in range(int(epochs(step, settings).max()) + 1)]
    )
    place = (step - 1) % (samples // size)
    each = size // world
    columns = (place * size + rank * each)[:, None] + np.arange(each)
    ids = shuffled[epochs(step, settings)[:, None], columns]
    offsets = np.arange(len(step) + 1) * each
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids.reshape(-1), pa.int64()))
    return table("ledger", rank=rank, step=step, epoch=epochs(step, settings), sample_ids=lists)


def digests(world: int, moments: list[tuple[str, int]], seed: int, lost: bool) -> pa.Table:
    many = len(STATE)
    per_rank = np.concatenate([state(seed, step, lost) for _, step in moments])
    kinds, steps = zip(*moments, strict=True)
    form = [("int", "") if name.startswith(("optimizer.step", "step")) else ("float32", "32x32") for name in STATE]
    rows = world * len(moments)
    return table(
        "digests",
        rank=np.repeat(np.arange(world), many * len(moments)),
        moment=np.tile(np.repeat(kinds, many), world),
        step=np.tile(np.repeat(steps, many), world),
        order=np.tile(np.arange(many), rows),
        name=np.tile(STATE, rows),
        dtype=np.tile([dtype for dtype, _ in form], rows),
        shape=np.tile([shape for _, shape in form], rows),
        digest=np.tile(per_rank, world),
    )


@cache
def state(seed: int, step: int, lost: bool) -> np.ndarray:
    """The digests of all entries at a step, 16 hex digits each."""
    draws = np.random.default_rng((seed, step)).integers(0, 2**64, len(STATE), np.uint64)
    if lost:
        draws ^= np.array([name.startswith("optimizer.exp_avg.") for name in STATE]).astype(np.uint64)
    return hexes(draws)


def events(leg: Leg, start: int, last: int) -> pa.Table:
    """What ranks and supervisor tell in a run without a surprise."""
    settings, ranks, rows = leg.trainer["settings"], range(leg.world), []

    def tell(rank: int, at: float, kind: str, step: int | None = None, point: str | None = None, **detail: Any) -> None:
        rows.append((rank, at, kind, step, point, json.dumps(detail)))

    for rank in ranks:
        tell(-1, 100, "launched", of_rank=rank, of_pid=200 + rank)
        tell(rank, 100.5, "described", facts=FACTS)
        tell(rank, 101, "group_formed", world=leg.world)
        tell(rank, 101.5, "restored", start, epoch=int(epochs(np.int64(start), settings)) if start else 0)
        tell(rank, 102, "first_step", start + 1)
        for kind, step in moments(leg, start, last):
            if kind == "saved":
                if rank == 0:
                    tell(rank, 102 + step, "committed", step)
                tell(rank, 102.1 + step, "saved", step)
    struck = 103.0 + last
    if leg.faults:
        (fault,) = leg.faults
        victims = [{"rank": leg.world - 1, "pid": 200 + leg.world - 1}]
        more = {"fault": fault["id"], "action": "sigkill", "victims": victims, "ends_by": [{"signal": 9}]}
        tell(leg.world - 1, struck - 0.2, "held", fault["step"], fault["point"], fault=fault["id"])
        tell(-1, struck - 0.1, "fault_armed", **more)
        tell(-1, struck, "fault_fired", **more)
    for rank in ranks:
        victim = bool(leg.faults) and rank == leg.world - 1
        if leg.faults and not victim:
            tell(rank, struck + 0.2, "error", type="RuntimeError", text="Connection closed by peer")
        if not leg.faults:
            tell(rank, struck, "finished", last)
        how = (
            {"status": None, "signal": 9, "by": "fault"}
            if victim
            else {"status": int(bool(leg.faults)), "signal": None, "by": "itself"}
        )
        tell(-1, struck + 0.5, "exited", of_rank=rank, of_pid=200 + rank, **how)
    rank, at, kind, step, point, detail = zip(*rows, strict=True)
    return table(
        "events",
        rank=rank,
        pid=np.array(rank) + 200,
        monotonic=at,
        wall=np.array(at) + 1.8e9,
        kind=kind,
        step=step,
        point=point,
        detail=detail,
    )


def provenance(leg: Leg) -> dict[str, Any]:
    """The facts that a leg states, as many as a real one."""
    return {
        "fingerprint": {"device": "Example CPU", "cpu_model": "Example CPU", "cpu_capability": "AVX2", "threads": "1",
                        "cpu_features": "avx avx2 f16c fma", "bridge": "gloo", "python": "3.11.2", "torch": "2.13.0",
                        "numpy": "2.4.6"},
        "host": {"os": "Linux", "machine": "x86_64", "cores": "2"},
        "software": dict.fromkeys(("takeback", "torch", "numpy", "pandas", "pyarrow", "snakemake"), "1.0"),
        "source": {"commit": None, "modified": False, "digests": {"trainer": "0" * 16, "nemesis": "0" * 16}},
        "trainer": {"facts": FACTS, "settings": leg.trainer["settings"]},
        "flags": {"OMP_NUM_THREADS": "1"},
        "id": leg.id[-10:],
    }  # fmt: skip


def by_rank(world: int, start: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Step and rank of each row of a table that has one a rank and step."""
    steps = np.arange(start + 1, last + 1)
    return np.tile(steps, world), np.repeat(np.arange(world), len(steps))


def epochs(step: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    return (step - 1) // (settings["samples"] // (settings["shards"] * settings["batch"]))


def hexes(numbers: np.ndarray) -> np.ndarray:
    """uint64 → 16 hex digits each, as S16."""
    return np.frombuffer(numbers.astype(">u8").tobytes().hex().encode(), "S16")


def table(which: str, **columns: Any) -> pa.Table:
    """Columns as a table of the documented schema; ``attempt`` is 0."""
    schema = evidence.arrow_schema(which)
    columns["attempt"] = np.zeros(len(columns["rank"]), np.int32)
    arrays = []
    for field in schema:
        values = columns[field.name]
        if isinstance(values, np.ndarray) and values.dtype.kind == "S":
            values = pa.array(values).cast(pa.string())
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
