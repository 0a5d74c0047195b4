"""A call with a time budget ends in time, says what it left out, and the next call goes on from there."""

import re
import time

import pandas as pd
import pytest
from flow import Flow

TRAINER = "workflow/tests/data/stuck.py"


@pytest.mark.timeout(900)
def test_what_does_not_fit_is_left_out_what_takes_too_long_is_cut_and_the_next_call_runs_only_these(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    # As far as the budget knows such a run takes deadline / 12 = 3 s of a core: all of them take 72.
    flow = Flow(tmp_path, small={
        "title": "Small", "question": "Is it the same run?", "deadline": 36,
        "trainer": {"command": ["python", TRAINER, str(flag), "{checkpoints}"]},
        "matrix": {"world": 1, "kill_step": list(range(1, 12))},
        "expect": {"verdict": "equal", "because": "it starts again from scratch"},
        "claims": [{"claim": "It survives.", "where": {}}],
    })  # fmt: skip
    marks, ran, seconds = [], [], iter((40, 50, 60, 75, 90, 120, 160))
    while not (marks and len(ran)):  # a busy machine gives the first of these back at once, or runs half a cell
        budget, begun = next(seconds), time.monotonic()
        call = flow.run("small", budget=f"{budget}s")
        assert time.monotonic() - begun < budget
        if marks := list(tmp_path.glob("results/runs/*/left_out")):
            assert call.returncode == 0, call.stdout
            first = pd.read_parquet(tmp_path / "results/small/verdicts.parquet").set_index("kill_step")
            ran = first[first.verdict == "equal"]
    assert len(ran) < 10
    rest = first.drop(ran.index)
    assert set(rest.verdict) == {"not-run"}
    assert set(rest.diagnosis) == {"budget"}
    assert 2 in rest.index
    assert re.search(r"takeback: small: \d+ of 11 cells left out for the budget", call.stdout)
    assert (
        f"small: {len(ran)} of {len(ran)} cells as predicted ({len(ran)} equal); {len(rest)} not run: budget;"
        in call.stdout
    )
    assert f"{len(rest)} cells did not run: budget." in (tmp_path / "results/small/report.html").read_text()
    assert f"{len(ran)} of {len(ran)}; {len(rest)} not run" in (tmp_path / "results/small/findings.tsv").read_text()

    flag.unlink()
    whole = {leg for leg in flow.legs() if not (tmp_path / "results/runs" / leg / "left_out").exists()}
    before = {leg: (tmp_path / f"results/runs/{leg}/events.parquet").stat().st_mtime_ns for leg in whole}
    call = flow.run("small")
    assert call.returncode == 0, call.stdout
    assert "small: 11 of 11 cells as predicted (11 equal); see" in call.stdout
    assert len(re.findall(r"^Finished jobid: .*Rule: leg", call.stdout, re.M)) == len(flow.legs()) - len(whole)
    assert {leg: (tmp_path / f"results/runs/{leg}/events.parquet").stat().st_mtime_ns for leg in whole} == before


def test_a_budget_that_is_no_time_is_one_line(tmp_path):
    flow = Flow(tmp_path, small={
        "title": "Small", "question": "Is it?", "trainer": {"name": "reference"},
        "matrix": {"world": 1, "kill_step": 6}, "expect": {"verdict": "equal", "because": "of it"},
    })  # fmt: skip
    call = flow.run("small", budget="soon")
    assert call.returncode == 1
    assert call.stdout == "takeback: budget=soon: is no time; write it as 90s, 10m or 1h\n"
