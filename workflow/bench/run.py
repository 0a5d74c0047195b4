"""The bench: Takeback beside what people do today and beside the floor, on the same cells, in one run.

    python workflow/bench/run.py             about 12 minutes on 2 quiet cores
    python workflow/bench/run.py --quick     2 to 3 minutes: fewer cells, one repetition

Each repetition measures all of them in turn. Exit status 1 if a target is unmet.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import draw
import meter
import pandas as pd
import plain
import targets
import yaml
from floor import Floor
from takeback import experiment, machine

ROOT = Path(__file__).parents[2]
BENCH = Path(__file__).parent


def subject(quick: bool) -> dict[str, Any]:
    """The matrix of the default experiment as an experiment of its own, without its includes and controls."""
    whole = yaml.safe_load((ROOT / "experiments/kill_resume.yaml").read_text(encoding="utf-8"))
    found = {key: whole[key] for key in ("question", "trainer", "matrix", "expect")} | {"title": "Bench"}
    if quick:
        found["trainer"]["settings"]["steps"] = 8
        found["matrix"] |= {"world": 2, "resume_world": [1, 2], "kill_step": 6}
    return found


class Bench:
    """All samples of one run: ``repetition, way, figure, value, of`` (which run, where it is one)."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.file = folder / "experiments/matrix.yaml"
        self.file.parent.mkdir()
        self.file.write_text(yaml.safe_dump(subject(args.quick), sort_keys=False))
        self.experiment = experiment.load(self.file, ROOT)
        self.cells = self.experiment.cells
        self.choose = random.Random(args.seed)
        self.samples: list[dict[str, Any]] = []
        self.repetition = 0

    def add(self, way: str, figure: str, value: float, of: str = "") -> None:
        self.samples.append(
            {"repetition": self.repetition, "way": way, "figure": figure, "value": float(value), "of": of}
        )

    def speed(self, way: str, wall: float, cpu: float) -> None:
        """``wall`` and ``cpu`` in seconds a cell."""
        self.add(way, "cells a minute", 60 / wall)
        self.add(way, "CPU, s a cell", cpu)
        print(f"  {way}: {60 / wall:.2f} cells a minute, {cpu:.2f} s CPU a cell", flush=True)

    def repeat(self, floor: Floor) -> None:
        self.repetition += 1
        print(f"repetition {self.repetition} of {self.args.repetitions}", flush=True)
        here = self.folder / str(self.repetition)
        here.mkdir()
        self.takeback(here / "takeback")
        wall, cpu = floor.train(list(self.experiment.legs.values()), here)
        self.speed("floor", wall / len(self.cells), cpu / len(self.cells))
        self.plain_loop(here)
        self.probe()
        self.attempts(here)

    def takeback(self, folder: Path) -> None:
        words = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--quiet", "all"]
        words += ["--directory", str(folder), "--cores", str(self.args.cores)]
        words += ["matrix", "--config", f"experiments={self.file.parent}"]
        log = folder.with_suffix(".log")
        with log.open("w") as out:
            cost = meter.Metered(words, stdout=out, stderr=out).cost()
        if cost.status:
            sys.exit(f"bench: the workflow ended with status {cost.status}:\n{log.read_text()[-2000:]}")
        self.speed("Takeback", cost.wall / len(self.cells), cost.cpu / len(self.cells))

    def plain_loop(self, here: Path) -> None:
        runs = []
        for number, cell in enumerate(plain.sample(self.cells, self.args.sample, self.choose)):
            runs += plain.run_cell(cell, here / f"plain-{number}")
        for run in runs:
            of = f"{run['role']} of {run['cell']}"
            self.add("torchrun", "wall, s a run", run["wall"], of)
            self.add("torchrun", "CPU, s a run", run["cpu"], of)
        missed = sum(run["role"] == "killed" and not run["struck"] for run in runs)
        self.add("torchrun", "kills that came too late", missed)
        for way, estimate in (("plain loop", plain.nothing_shared), ("references shared", plain.shared)):
            self.speed(way, estimate(runs, self.cells, "wall"), estimate(runs, self.cells, "cpu"))

    def probe(self) -> None:
        for figure, value in self.script("steps.py", "40" if self.args.quick else "400").items():
            self.add("probe", figure, value)

    def attempts(self, here: Path) -> None:
        (here / "attempts").mkdir()
        for run in self.script("attempts.py", str(self.file), str(here / "attempts")):
            if "back" in run:
                self.add("attempt", "kill to first resumed step, world 2, s beyond detection", run["back"], run["run"])
                continue
            self.add("attempt", "supervisor CPU beyond its ranks, ms an attempt", 1000 * run["own"], run["run"])
            if run["role"] in ("reference", "twin"):
                self.add("attempt", f"{run['role']}, CPU s a run", run["own"] + run["ranks"], run["run"])
                self.add("attempt", f"{run['role']}, wall s a run", run["wall"], run["run"])

    def script(self, name: str, *words: str) -> Any:
        finished = subprocess.run(
            [sys.executable, str(BENCH / name), *words], stdout=subprocess.PIPE, text=True, check=True
        )
        return json.loads(finished.stdout)

    def rows(self) -> list[dict[str, str]]:
        """The table of targets; ratios are of one repetition each."""
        frame = pd.DataFrame(self.samples)
        at = {key: part.value.tolist() for key, part in frame.groupby(["way", "figure"], sort=False)}

        def ratio(above: str, below: str, figure: str) -> list[float]:
            return [a / b for a, b in zip(at[above, figure], at[below, figure], strict=True)]

        speed, cpu = "cells a minute", "CPU, s a cell"
        found = [
            targets.row("cells a minute, Takeback : plain loop", ratio("Takeback", "plain loop", speed), ">= 30"),
            targets.row("cells a minute, Takeback : references shared", ratio("Takeback", "references shared", speed)),
            targets.row("wall, Takeback : floor", ratio("floor", "Takeback", speed), "<= 2"),
            targets.row("CPU a cell, plain loop : Takeback", ratio("plain loop", "Takeback", cpu)),
            targets.row("CPU a cell, references shared : Takeback", ratio("references shared", "Takeback", cpu)),
            targets.row("CPU a cell, Takeback : floor", ratio("Takeback", "floor", cpu)),
        ]  # fmt: skip
        found += [targets.row(f"{figure}, {way}", at[way, figure]) for figure in (speed, cpu) for way in draw.WAYS]
        goals = {
            "probe, loss and ledger, µs a step": "<= 20",
            "probe, loss and ledger, % of a step of 5 ms": "<= 1",
            "probe, bytes written by unarmed points": "<= 0",
            "supervisor CPU beyond its ranks, ms an attempt": "<= 50",
            "kill to first resumed step, world 2, s beyond detection": "<= 0.5",
        }
        return found + [
            targets.row(figure, values, goals.get(figure, ""))
            for (way, figure), values in at.items()
            if way in ("probe", "attempt")
        ]

    def write(self, rows: list[dict[str, str]], results: Path) -> None:
        results.mkdir(parents=True, exist_ok=True)
        frame = pd.DataFrame(self.samples)
        frame.attrs = {"arguments": {key: str(value) for key, value in vars(self.args).items()},
                       "software": machine.software(), "source": machine.source()}  # fmt: skip
        frame.to_parquet(results / "samples.parquet", index=False)
        draw.draw(frame, rows, results / "bench.svg")
        targets.merge(rows, results / "targets.tsv")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python workflow/bench/run.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two cells of 8 steps, one repetition")
    parser.add_argument("--repetitions", type=int, help="default: 3; --quick: 1")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="default: %(default)s")
    parser.add_argument("--sample", type=int, default=1, help="cells of the plain loop, a world of the kill")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--results", type=Path, default=ROOT / "results/bench", help="folder of the results")
    args = parser.parse_args()
    args.repetitions = args.repetitions or (1 if args.quick else 3)
    with tempfile.TemporaryDirectory(prefix="takeback-bench-") as folder:
        bench = Bench(args, Path(folder))
        worlds = sorted({leg.world for leg in bench.experiment.legs.values()})
        print(
            f"{len(bench.cells)} cells, {len(bench.experiment.legs)} runs on {args.cores} cores; of the plain loop "
            f"{args.sample * len({cell.axes['world'] for cell in bench.cells})} cell(s) a repetition are sampled (seed "
            f"{args.seed}), and with shared references the loop is those torchruns, equal ones counted once"
        )
        with Floor(worlds, args.cores, Path(folder)) as floor:
            for _ in range(args.repetitions):
                bench.repeat(floor)
                rows = bench.rows()
                bench.write(rows, args.results)  # each time: whoever stops it early keeps what there is
    status = targets.report(rows)
    print(f"written to {args.results}: targets.tsv, samples.parquet, bench.svg")
    return status


if __name__ == "__main__":
    sys.exit(main())
