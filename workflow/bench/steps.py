"""What the probe costs a step, measured between training steps of 5 ms: as a script it prints samples as JSON.

Loss and ledger are what every trainer tells; state digests are timed apart, and so are points at which no fault waits.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STEP = 0.005  # s of computing between two calls, so that these find the caches as a trainer leaves them
POINTS = ("step_begin", "forward", "backward", "allreduce", "optimizer")


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(count, Path(folder))))


def measure(count: int, folder: Path) -> dict[str, float]:
    """Figure → value; each the median of ``count`` calls."""
    os.environ |= {"TAKEBACK_RECORDS": str(folder), "RANK": "0", "OMP_NUM_THREADS": "1", "TAKEBACK_ONE_LIFE": "1"}
    import torch
    from takeback import probe
    from takeback.trainers import strategies, topology
    from takeback.trainers.build import build
    from takeback.trainers.settings import Settings

    torch.set_num_threads(1)
    cfg, cpu = Settings(checkpoints=""), torch.device("cpu")
    topology.join("gloo", cpu)  # a group of one
    state = build(cfg, strategies.of(cfg, "single", 1, cpu)).collect()
    loss, norm, matrix = torch.tensor(2.5), torch.tensor(0.7), torch.randn(192, 192)
    ids, written = list(range(8)), folder / "attempt0-rank0.jsonl"

    def tell(step: int) -> None:
        probe.step(step, loss, epoch=1, samples=ids, micro_batches=4, lr=1e-3, grad_norm=norm)

    def points(step: int) -> None:
        for name in POINTS:
            probe.point(name, step)

    def between() -> float:
        started = time.perf_counter()
        while (now := time.perf_counter()) - started < STEP:
            matrix @ matrix
        return now

    def back_to_back(call: Callable[[int], None]) -> float:
        """Median µs of a call among many."""
        found = []
        for step in range(1, 20 * count + 1):
            started = time.perf_counter()
            call(step)
            found.append(time.perf_counter() - started)
        return 1e6 * statistics.median(found)

    def timed(call: Callable[[int], None]) -> float:
        """Median µs of a call that comes after a step."""
        found = []
        for step in range(1, count + 1):
            started = between()
            call(step)
            found.append(time.perf_counter() - started)
        return 1e6 * statistics.median(found)

    told = back_to_back(tell)
    between_steps = timed(tell)
    before = written.stat().st_size
    unarmed = timed(points)
    return {
        "probe, loss and ledger, µs a step": told,
        "probe, loss and ledger, % of a step of 5 ms": 100 * between_steps * 1e-6 / STEP,
        "probe, unarmed points, µs a step": unarmed,
        "probe, bytes written by unarmed points": written.stat().st_size - before,
        "probe, state digests, µs a step": timed(lambda step: probe.digest("step", step, state)),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))
