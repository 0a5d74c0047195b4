"""The bench, in its quick form, as a user calls it."""

import os
import subprocess
import sys

import pandas as pd
import pytest
import targets
from flow import ROOT


@pytest.mark.cold
@pytest.mark.timeout(1200)
def test_the_quick_bench_measures_every_way_and_its_exit_status_tells_whether_all_targets_are_met(tmp_path):
    words = [sys.executable, str(ROOT / "workflow/bench/run.py"), "--quick", "--results", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    finished = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    rows = {row["figure"]: row for row in targets.read(tmp_path / "targets.tsv")}
    assert finished.returncode == int(any(row["met"] == "no" for row in rows.values())), finished.stderr
    assert {figure for figure, row in rows.items() if row["target"]} == {
        "cells a minute, Takeback : plain loop",
        "wall, Takeback : floor",
        "probe, loss and ledger, µs a step",
        "probe, loss and ledger, % of a step of 5 ms",
        "probe, bytes written by unarmed points",
        "supervisor CPU beyond its ranks, ms an attempt",
        "kill to first resumed step, world 2, s beyond detection",
    }
    samples = pd.read_parquet(tmp_path / "samples.parquet")
    speed = samples[samples.figure == "cells a minute"].set_index("way").value
    assert set(speed.index) == {"plain loop", "references shared", "Takeback", "floor"}
    assert speed["plain loop"] < speed["references shared"] < speed["floor"]
    assert speed["plain loop"] < speed["Takeback"] < speed["floor"]
    assert samples[samples.figure == "kills that came too late"].value.tolist() == [0]
    runs = samples[(samples.way == "torchrun") & (samples.figure == "wall, s a run")].of.str.partition(" ")[0]
    assert runs.tolist() == ["reference", "killed", "resumed"]
    assert "of the plain loop 1 cell(s) a repetition are sampled (seed 0)" in finished.stdout
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")
