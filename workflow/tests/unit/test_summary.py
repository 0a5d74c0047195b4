"""What the terminal says at the end."""

from __future__ import annotations

import pandas as pd
from takeback.summary import terminal_summary


def row(cell, verdict="equal", *, expected="equal", surprise=False, diagnosis="", **more):
    return {"cell": cell, "verdict": verdict, "expected": expected, "surprise": surprise, "diagnosis": diagnosis,
            "first_step": None, "first_state": None, "expected_first_step": None, "expected_first_state": None,
            "killed": f"kill-{cell}", "resumed": f"resume-{cell}"} | more  # fmt: skip


def test_all_as_predicted_is_one_line_and_status_0():
    rows = [row("a"), row("b"), row("c", "different", expected="different"), row("d", "invalid", expected="invalid")]
    text, status = terminal_summary(pd.DataFrame(rows), "kill_resume")
    told = "kill_resume: 4 of 4 cells as predicted (2 equal, 1 different, 1 invalid)"
    assert (text, status) == (f"{told}; see results/kill_resume/report.html", 0)


def test_cells_that_could_not_run_are_counted_apart_with_their_reasons():
    rows = [row("a"), *(row(c, "not-run", diagnosis="no CUDA device") for c in "bc")]
    text, status = terminal_summary(pd.DataFrame(rows), "x")
    told = "x: 1 of 1 cells as predicted (1 equal); 2 not run: no CUDA device"
    assert (text, status) == (f"{told}; see results/x/report.html", 0)


def test_where_there_are_several_reasons_each_is_counted():
    rows = [row("a", "not-run", diagnosis="no CUDA device"), *(row(c, "not-run", diagnosis="budget") for c in "bc")]
    text, status = terminal_summary(pd.DataFrame(rows), "x")
    assert "3 not run: no CUDA device (1), budget (2)" in text
    assert status == 0


def test_a_surprise_names_cell_expectation_result_reason_logs_and_the_command_and_is_status_1():
    lost = row("lost", "different", surprise=True, diagnosis="from step 17 on", first_step=17, first_state="rng.torch")
    text, status = terminal_summary(pd.DataFrame([row("a"), lost]), "x")
    assert status == 1
    assert text.splitlines() == [
        "cell:      lost",
        "expected:  equal",
        "got:       different from step 17 on, rng.torch first",
        "why:       from step 17 on",
        "logs:      results/logs/leg/kill-lost.log results/logs/leg/resume-lost.log",
        "reproduce: snakemake --cores 2 x --forcerun results/runs/resume-lost/events.parquet",
        "",
        "x: 1 of 2 cells as predicted (1 equal, 1 different); see results/x/report.html",
    ]


def test_an_equal_cell_that_was_predicted_different_is_a_surprise_too():
    missed = row("missed", "equal", expected="different", surprise=True, expected_first_step=17)
    text, status = terminal_summary(pd.DataFrame([missed]), "x")
    assert status == 1
    assert "expected:  different from step 17 on" in text
