"""How an experiment grows: 100, 1,000 and 10,000 cells, from the dry-run to the page.

    python workflow/bench/scale.py

Writes an experiment of n cells (worlds x kill steps x resume worlds x seeds; the rest are negative controls) and, by
number, evidence of all its runs, 100 steps each. Then runs what a user runs, in processes of their own, and takes the
time and the memory of each. Exit status 1 if a target is unmet. Needs about 2 GB of disk; nothing is trained.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pandas as pd
import psutil
import synthetic_runs
import targets
import yaml
from takeback import experiment

ROOT = Path(__file__).parents[2]
WORLDS, STEPS = [1, 2, 4], 100
KILLS = [4, 13, 22, 31, 40, 49, 58, 67, 76, 85, 94]
BLOCK = len(WORLDS) ** 2 * len(KILLS)  # cells of one seed
SIZES = (100, 1_000, 10_000)
#: Part → seconds and MB at 10,000 cells on two cores; None where it is only told.
TARGETS = {"dry-run": (15, 600), "verdicts": (20, 2000)}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="cells; targets are set for 10,000")
    options.add_argument("--repeat", type=int, default=3, help="how often each part is measured")
    options.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    options.add_argument("--keep", action="store_true", help="leave the evidence there, for the next call")
    args = options.parse_args()
    out = (args.results / "bench").resolve()
    found = []
    for cells in args.sizes:
        folder = out / f"scale-{cells}"
        found += measure(folder, cells, args.repeat)
        if not args.keep:
            shutil.rmtree(folder / "results/runs")
    frame = pd.DataFrame(found)
    frame.to_parquet(out / "scale.parquet")
    print(
        frame.groupby(["part", "cells"], sort=False)[["seconds", "cpu", "megabytes"]].median().unstack("cells").round(1)
    )
    draw(frame, out / "scale.svg")
    rows = judged(frame)
    targets.merge(rows, out / "targets.tsv")
    return targets.report(rows) if rows else 0


def measure(folder: Path, cells: int, repeat: int) -> list[dict]:
    """One row a part and repetition: part, cells, seconds, megabytes, bytes written."""
    file = write_experiment(folder / "experiments/scale.yaml", cells)
    made = experiment.load(file)
    assert len(made.cells) == cells, f"{len(made.cells)} cells instead of {cells}"
    rows = []

    def take(part: str, *words: str, output: str | None = None, where: Path = folder) -> None:
        for _ in range(repeat):
            seconds, cpu, megabytes = run(words, where)
            size = (folder / "results/scale" / output).stat().st_size if output else 0
            rows.append(
                {"part": part, "cells": cells, "seconds": seconds, "cpu": cpu, "megabytes": megabytes, "bytes": size}
            )

    nothing = folder / "nothing has run"
    nothing.mkdir(exist_ok=True)
    snakemake = ["snakemake", "--snakefile", str(ROOT / "Snakefile"), "-n", "--config", f"experiments={file.parent}"]
    take("dry-run", *snakemake, "--", "scale", where=nothing)
    begun, runs = time.monotonic(), folder / "results/runs"
    lacking = [leg for leg in made.legs.values() if not (runs / leg.id / "provenance.json").exists()]
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(synthetic_runs.write, runs=runs), lacking, chunksize=50))
    print(f"{cells} cells: evidence of {len(lacking)} runs in {time.monotonic() - begun:.0f} s", flush=True)
    take("verdicts", *verb_of("verdicts", file))
    take("page", *verb_of("page", file), output="report.html")
    take("check", sys.executable, "-m", "takeback", "check", "scale")
    judged = pd.read_parquet(folder / "results/scale/verdicts.parquet")
    assert not judged.surprise.any(), f"{judged.surprise.sum()} of {cells} cells were judged otherwise than made"
    return rows


def verb_of(verb: str, file: Path) -> list[str]:
    return [sys.executable, "-m", "takeback", verb, str(file)]


def write_experiment(path: Path, cells: int) -> Path:
    """An experiment of exactly ``cells`` cells: whole blocks of the matrix, and negative controls for the rest."""
    blocks, rest = divmod(cells, BLOCK)
    control = {
        "world": 2,
        "resume_world": 2,
        "trainer": {"seed": list(range(rest))},
        "kill_step": 31,
        "resume_trainer": {"forget": "optimizer"},
    }
    document = {
        "title": f"Scale, {cells:,} cells",
        "question": "How do time and memory grow with the number of cells?",
        "trainer": {
            "name": "reference",
            "settings": {"steps": STEPS, "samples": 64, "batch": 2, "shards": 4, "save_every": 20},
        },
        "matrix": {"world": WORLDS, "resume_world": WORLDS, "kill_step": KILLS,
                   "trainer": {"seed": list(range(blocks))}},
        "expect": {"verdict": "equal", "because": "the evidence was made so"},
        "controls": [
            {
                "name": "optimizer moments dropped",
                **control,
                "expect": {"verdict": "different", "first_step": 21, "first_state": "optimizer.exp_avg.*",
                           "because": "the evidence was made so"},
            }
        ],
        "claims": [
            {"claim": "At the same world size the run is the same run.", "where": {"resume_world": "same"}},
            {"claim": "At another world size it is so too.", "where": {"resume_world": "other"}},
            {"claim": "What was planted is caught.", "control": "*"},
        ],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def run(words: Sequence[str], folder: Path) -> tuple[float, float, float]:
    """Seconds of a command in ``folder``, its CPU seconds, and the largest sum of the memory of its processes in MB.

    Memory is the proportional set size (PSS), in which a page shared by a parent and its forks counts once.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "workflow")}
    log, most, begun, before = folder / "bench.log", 0.0, time.monotonic(), os.times()
    with log.open("wb") as file:
        process = psutil.Popen(words, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
        while process.poll() is None:
            most = max(most, megabytes(process))
            time.sleep(0.2)
    seconds, after = time.monotonic() - begun, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    if process.returncode:
        raise SystemExit(f"{' '.join(words[:5])} …: exit status {process.returncode}; see {log}")
    return seconds, cpu, most


def megabytes(process: psutil.Process) -> float:
    found = 0
    for one in family(process):
        try:
            found += one.memory_full_info().pss
        except psutil.Error:
            continue
    return found / 1e6


def family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def judged(frame: pd.DataFrame) -> list[dict[str, str]]:
    """The rows of ``targets.tsv``: times, memory, the size of the page, and growth from 1,000 to 10,000 cells."""
    rows = []
    for part, of_part in frame[frame.cells == max(SIZES)].groupby("part", sort=False):
        seconds, most = TARGETS.get(part, (None, None))
        rows.append(
            targets.row(f"{part} of 10,000 cells, s", list(of_part.seconds), f"<= {seconds}" if seconds else "")
        )
        rows.append(targets.row(f"{part} of 10,000 cells, CPU s", list(of_part.cpu)))
        rows.append(targets.row(f"{part} of 10,000 cells, MB", list(of_part.megabytes), f"<= {most}" if most else ""))
        before = frame[(frame.part == part) & (frame.cells == max(SIZES) // 10)]
        if len(before):
            growth = list(of_part.seconds.to_numpy() / before.seconds.to_numpy())
            rows.append(targets.row(f"{part}: 10,000 cells over 1,000, times", growth, "<= 10"))
    page = frame[(frame.part == "page") & (frame.cells == max(SIZES))]
    if len(page):
        rows.append(targets.row("page of 10,000 cells, size in MB", list(page.bytes / 1e6), "<= 10"))
    return rows


def draw(frame: pd.DataFrame, out: Path) -> None:
    """Time and memory of each part over the number of cells, both on logarithmic scales."""
    import matplotlib.pyplot as plt
    import seaborn as sns
    from takeback.figures import style

    style.use()
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for axis, column, label in zip(axes, ("seconds", "megabytes"), ("seconds", "MB"), strict=True):
        last = axis is axes[-1]
        sns.lineplot(frame, x="cells", y=column, hue="part", style="part", markers=True, dashes=False, ax=axis,
                     legend=last, errorbar=("pi", 100))  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="cells", ylabel=label)
    sns.move_legend(axes[-1], "upper left", bbox_to_anchor=(1.02, 1), title=None)
    style.save(figure, out, "Time and memory of each part over the number of cells")


if __name__ == "__main__":
    sys.exit(main())
