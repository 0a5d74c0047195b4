"""A whole small experiment: what is asked of Snakemake, and what is left when it has ended."""

import json
import os
import re
import subprocess
import sys

import pandas as pd
import pytest
from flow import FOREIGN, SMALL, WRONG, Flow
from takeback import evidence


def test_all_as_predicted_is_exit_0_and_one_line(finished):
    _, call = finished
    assert call.returncode == 0, call.stdout
    lines = [line for line in call.stdout.splitlines() if line.startswith("small: ")]
    here = "4 of 4 cells as predicted (3 equal, 1 different)"
    without = "3 of 3 cells as predicted (2 equal, 1 different); 1 not run: no CUDA device"
    said = here if os.path.exists("/dev/nvidiactl") else without
    assert lines == [f"small: {said}; see results/small/report.html"]


def test_progress_is_said(finished):
    _, call = finished
    assert re.search(r"takeback: small: \d+/\d+ runs, \d/4 cells done", call.stdout)


def test_the_results_have_exactly_the_promised_names(finished):
    flow, _ = finished
    found = {
        str(path.relative_to(flow.folder / "results/small"))
        for path in (flow.folder / "results/small").rglob("*")
        if path.is_file()
    }
    promised = {
        "verdicts.parquet", "verdicts.tsv", "findings.tsv", "provenance.json", "provenance.tsv", "report.html",
        "figures/verdicts.svg", "figures/overlay-gloo-w2.svg", "figures/overlay-nccl-w1.svg", "checked.txt",
    }  # fmt: skip
    assert {name for name in found if not name.startswith("logs/") and "/.snakemake" not in name} == promised


def test_the_verdicts_have_the_promised_columns_and_one_for_each_axis(finished):
    flow, _ = finished
    table = pd.read_parquet(flow.folder / "results/small/verdicts.parquet")
    promised = [
        "cell",
        "verdict",
        "expected",
        "surprise",
        "first_step",
        "first_state",
        "max_ulp",
        "diagnosis",
        "backend",
        "world",
        "kill_step",
        "resume_world",
        "fault",
        "point",
    ]
    assert set(promised) <= set(table.columns)
    assert "resume_trainer.forget" in table.columns
    same = pd.read_csv(flow.folder / "results/small/verdicts.tsv", sep="\t")
    assert same.cell.tolist() == table.cell.tolist()
    assert list(same.columns) == list(table.columns)


def test_each_verdict_says_what_was_really_compared(finished):
    flow, _ = finished
    table = pd.read_parquet(flow.folder / "results/small/verdicts.parquet").set_index("cell")
    row = table.loc["gloo-w2-k6-r1-sigkill"]
    assert (row.restored_step, row.committed_step, row.steps_compared, row.losses_different) == (4, 4, 4, 0)
    assert "losses of steps 5-8 as float32 bits" in row.comparison
    assert row.states_compared > 1000


def test_evidence_opens_in_pandas_and_names_its_provenance(finished):
    flow, _ = finished
    import pyarrow.parquet as pq

    for leg in flow.legs():
        folder = flow.folder / "results/runs" / leg
        for table in evidence.TABLES:
            assert list(pd.read_parquet(folder / f"{table}.parquet").columns) == list(evidence.columns(table))
            metadata = pq.read_schema(folder / f"{table}.parquet").metadata
            assert (
                metadata[b"takeback.provenance"].decode() == json.loads((folder / "provenance.json").read_text())["id"]
            )


def test_somebody_elses_script_gets_its_verdict_on_the_same_way(finished):
    flow, _ = finished
    call = flow.run("foreign")
    assert call.returncode == 0, call.stdout
    assert "foreign: 1 of 1 cells as predicted (1 equal)" in call.stdout
    row = pd.read_parquet(flow.folder / "results/foreign/verdicts.parquet").iloc[0]
    assert (row.restored_step, row.steps_compared, row.states_compared, row.samples_equal) == (4, 8, 0, True)


def test_with_k_the_rest_goes_on_after_a_job_has_failed(tmp_path):
    flow = Flow(tmp_path, foreign=FOREIGN, other={**FOREIGN, "matrix": {**FOREIGN["matrix"], "kill_step": 3}})
    wanted = flow.run("foreign", "--dry-run").stdout
    killed = re.search(r"results/runs/(kill-[^/]+)/", wanted)[1]
    evidence = f"results/runs/{killed}/events.parquet"
    assert flow.run(evidence).returncode == 0
    (tmp_path / evidence).chmod(0o644)
    (tmp_path / evidence).write_bytes(b"cut")  # the run that starts from this one can't read it
    call = flow.run("foreign", "other", "-k")
    assert call.returncode != 0
    assert (tmp_path / "results/other/checked.txt").exists()
    assert not (tmp_path / "results/foreign/verdicts.parquet").exists()


def test_a_second_call_does_nothing(finished):
    flow, _ = finished
    call = flow.run("small")
    assert call.returncode == 0
    assert "Nothing to be done" in call.stdout


def test_a_dry_run_makes_nothing_and_starts_nothing(tmp_path):
    flow = Flow(tmp_path, small=SMALL)
    call = flow.run("small", "--dry-run")
    assert call.returncode == 0
    assert re.search(r"^leg +10$", call.stdout, re.M)
    assert not (tmp_path / "results").exists()


def test_a_surprise_turns_red_after_page_and_tables_are_there(finished):
    flow, _ = finished
    before = flow.legs()
    call = flow.run("wrong")
    assert call.returncode == 1
    assert flow.legs() == before, "it compares the same runs: nothing may be trained again"
    assert (flow.folder / "results/wrong/report.html").exists()
    assert not (flow.folder / "results/wrong/checked.txt").exists()
    for word in (
        "cell:      gloo-w2-k6-r2-sigkill",
        "expected:  different",
        "got:       equal",
        "results/logs/leg/",
        "snakemake --cores",
    ):
        assert word in call.stdout
    again = flow.run("wrong")
    assert again.returncode == 1, "a surprise must stay red until it is understood"


def test_the_command_of_a_surprise_resumes_again_and_judges_anew(finished):
    flow, _ = finished
    said = flow.run("wrong").stdout
    command = re.search(r"^reproduce: +snakemake --cores 2 (.*)$", said, re.M)[1].split()
    call = flow.run("--dry-run", *command)
    assert call.returncode == 0, call.stdout
    assert re.search(r"^leg +1$", call.stdout, re.M)
    assert re.search(r"^verdicts +1$", call.stdout, re.M)


def test_an_edited_experiment_runs_only_what_is_new(finished, tmp_path):
    flow, _ = finished
    more = Flow(flow.folder / "more", small=SMALL)
    (more.folder / "results").symlink_to(flow.folder / "results")
    (more.folder / ".snakemake").symlink_to(flow.folder / ".snakemake")
    more.write("small", {**SMALL, "matrix": {**SMALL["matrix"], "kill_step": [6, 3]}})
    call = more.run("small", "--dry-run")
    # One more kill step: a killed leg and its two resumes; the control and the nccl include take it too.
    assert re.search(r"^leg +(\d+)$", call.stdout, re.M)[1] == "6"
    assert "verdicts" in call.stdout


def test_another_prediction_judges_again_and_trains_nothing(finished):
    flow, _ = finished
    flow.write("small", {**SMALL, "expect": {"verdict": "equal", "because": "another reason"}})
    try:
        call = flow.run("small", "--dry-run")
        assert re.search(r"^verdicts +1$", call.stdout, re.M)
        assert not re.search(r"^leg +\d+$", call.stdout, re.M)
    finally:
        flow.write("small", SMALL)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"wrold": 1}, ["wrong.yaml", "wrold", "allowed"]),
        ({"matrix": {**WRONG["matrix"], "kill_step": 99}}, ["wrong.yaml", "kill_step", "1 to 8"]),
        ({"matrix": {**WRONG["matrix"], "world": []}}, ["wrong.yaml", "world", "empty"]),
    ],
)
def test_a_mistake_is_one_line_at_parse_time(tmp_path, mistake, words):
    flow = Flow(tmp_path, small=SMALL, wrong={**WRONG, **mistake})
    call = flow.run("small")
    assert call.returncode != 0
    lines = [line for line in call.stdout.splitlines() if line.strip()]
    assert len(lines) == 1, call.stdout
    for word in words:
        assert word in lines[0]
    assert not (tmp_path / "results").exists()


def test_an_empty_folder_of_experiments_is_one_line(tmp_path):
    call = Flow(tmp_path).run()
    assert call.returncode != 0
    assert len(call.stdout.strip().splitlines()) == 1
    assert "no experiment in" in call.stdout


def test_results_that_are_no_folder_are_one_line(tmp_path):
    flow = Flow(tmp_path, small=SMALL)
    (tmp_path / "results").write_text("mine")
    call = flow.run("small")
    assert call.returncode != 0
    assert (
        call.stdout
        == f"takeback: {tmp_path}/results: is no folder that can be written; name another: --directory FOLDER\n"
    )
    assert (tmp_path / "results").read_text() == "mine"


def test_truncated_evidence_fails_in_one_line_and_comes_back_when_it_is_removed(tmp_path):
    flow = Flow(tmp_path, wrong={**WRONG, "expect": SMALL["expect"]})
    assert flow.run("wrong").returncode == 0
    leg = sorted(flow.legs())[0]
    path = tmp_path / "results/runs" / leg / "losses.parquet"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:100])
    call = flow.run("wrong", "--forcerun", "verdicts")
    assert call.returncode != 0
    log = (tmp_path / "results/wrong/logs/verdicts.log").read_text()
    assert log.count("\n") == 1
    assert "losses.parquet: is no whole parquet file" in log
    subprocess.run(["rm", "-r", path.parent], check=True)
    assert flow.run("wrong").returncode == 0


def test_the_runs_have_the_same_bits_with_and_without_the_pool(finished, tmp_path):
    warm, _ = finished
    one = {**SMALL["matrix"], "resume_world": 1}  # a cold rank takes seconds
    cold = Flow(tmp_path, small={**SMALL, "matrix": one, "include": [], "controls": [], "claims": []})
    assert cold.run("small", warm="false").returncode == 0
    assert cold.legs() <= warm.legs()
    for leg in cold.legs():
        for table in ("losses", "digests", "ledger"):
            a, b = (pd.read_parquet(flow.folder / "results/runs" / leg / f"{table}.parquet") for flow in (warm, cold))
            assert same_bits(a, b), (leg, table)


def same_bits(a, b):
    columns = [name for name in a.columns if name != "sample_ids"]
    order = ["rank", "step", *(["moment", "order"] if "moment" in columns else [])]
    a, b = (frame.sort_values(order).reset_index(drop=True) for frame in (a, b))
    pd.testing.assert_frame_equal(a[columns], b[columns], check_exact=True)
    return len(a) > 0 and ("sample_ids" not in a or [list(x) for x in a.sample_ids] == [list(x) for x in b.sample_ids])


def test_snakemakes_own_report_holds_figures_tables_and_captions(finished, tmp_path):
    flow, _ = finished
    call = flow.run("small", "--report", str(tmp_path / "report.html"))
    assert call.returncode == 0, call.stdout
    page = (tmp_path / "report.html").read_text()
    for word in ("Verdicts", "Figures", "Provenance", "overlay-gloo-w2.svg", "Losses of small on gloo at world 2"):
        assert word in page


def test_reference_numbers_agree_with_themselves_and_name_what_differs(finished, tmp_path):
    flow, _ = finished
    from takeback import compare, experiment

    found = experiment.load(flow.folder / "experiments/small.yaml")
    results = flow.folder / "results"
    compare.publish(found, results, results / "runs", tmp_path / "reference")

    def ask():
        words = [sys.executable, "-m", "takeback", "compare", str(results / "small"), str(tmp_path / "reference")]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    assert ask().returncode == 0
    path = tmp_path / "reference/losses.tsv"
    lines = path.read_text().splitlines()
    fields = lines[5].split("\t")
    fields[3] = str(int(fields[3]) + 1)
    path.write_text("\n".join([*lines[:5], "\t".join(fields), *lines[6:]]) + "\n")
    told = ask()
    assert told.returncode == 1
    assert fields[0] in told.stdout
    assert "NOT explained" in told.stdout


def test_the_published_numbers_belong_to_the_experiment_of_the_repository():
    from takeback import experiment

    found = experiment.load(experiment.ROOT / "experiments/kill_resume.yaml")
    table = pd.read_csv(experiment.ROOT / "workflow/reference/kill_resume/verdicts.tsv", sep="\t")
    published = list(zip(table.cell, table.reference, table.killed, table.resumed, strict=True))
    here = [(cell.id, cell.reference.id, cell.killed.id, cell.resumed.id) for cell in found.cells]
    assert published == here, "run the default experiment and publish again"
