"""Reference numbers: what agrees, what differs, and what explains it."""

import json
import shutil

import pytest
import synthetic
import synthetic_legs
from takeback import evidence, provenance
from takeback.compare import compare, publish


@pytest.fixture
def asked():
    return synthetic.experiment(worlds=(1, 2), kills=((6, "step"),), controls=False)


def results(folder, asked, frame, **fingerprint):
    runs, own = folder / "runs", folder / asked.name
    own.mkdir(parents=True)
    synthetic_legs.write_legs(asked, frame, runs)
    evidence.write_table(own / "verdicts.parquet", "verdicts", frame)
    (own / "figures").mkdir()
    (own / "figures/verdicts.svg").write_text("<svg/>")
    legs = [synthetic_legs.provenance(cell.resumed, **fingerprint) for cell in asked.cells]
    provenance.write(provenance.of_experiment(asked, frame, legs), own)
    return own


@pytest.fixture
def reference(asked, tmp_path):
    results(tmp_path / "theirs", asked, synthetic.verdicts(asked))
    publish(asked, tmp_path / "theirs", tmp_path / "theirs/runs", tmp_path / "reference")
    return tmp_path / "reference"


def other_bits(folder, asked, step):
    """Change one loss of the first resumed leg by 3 units in the last place."""
    path = folder / "runs" / asked.cells[0].resumed.id / "losses.parquet"
    losses = evidence.read_table(path, "losses")
    losses.loc[losses.step == step, "loss_bits"] += 3
    evidence.write_table(path, "losses", losses)


def test_the_same_numbers_agree(asked, reference, tmp_path):
    text, status = compare(results(tmp_path / "ours", asked, synthetic.verdicts(asked)), reference)
    assert status == 0
    assert "verdicts: 4 of 4 cells agree" in text
    assert "losses: 128 of 128 have the same bits, in 6 legs" in text
    assert "explained" not in text


def test_other_bits_on_the_same_fingerprint_are_not_explained(asked, reference, tmp_path):
    ours = results(tmp_path / "ours", asked, synthetic.verdicts(asked))
    other_bits(tmp_path / "ours", asked, 9)
    text, status = compare(ours, reference)
    assert status == 1
    assert "from step 9 on, 1 losses; there 3 ULP" in text
    assert "NOT explained" in text


def test_other_bits_on_another_fingerprint_are_explained_by_it(asked, reference, tmp_path):
    ours = results(tmp_path / "ours", asked, synthetic.verdicts(asked), cpu_capability="AVX2")
    other_bits(tmp_path / "ours", asked, 9)
    text, status = compare(ours, reference)
    assert status == 0
    assert "explained by: cpu_capability AVX512 → AVX2" in text


def test_another_verdict_is_never_explained(asked, reference, tmp_path):
    frame = synthetic.verdicts(asked, {asked.cells[0].id: "different"})
    text, status = compare(results(tmp_path / "ours", asked, frame, cpu_capability="AVX2"), reference)
    assert status == 1
    assert f"{asked.cells[0].id}: equal → different 17 rng.torch" in text


def test_a_cell_that_can_not_run_here_is_no_difference(asked, reference, tmp_path):
    frame = synthetic.verdicts(asked, {asked.cells[0].id: "not-run"})
    text, _ = compare(results(tmp_path / "ours", asked, frame), reference)
    assert "1 cells did not run on both machines" in text
    assert "3 of 3 cells agree" in text


def test_of_a_cell_that_did_not_run_no_evidence_is_needed(asked, reference, tmp_path):
    frame = synthetic.verdicts(asked, {asked.cells[0].id: "not-run"})
    ours = results(tmp_path / "ours", asked, frame)
    shutil.rmtree(tmp_path / "ours/runs" / asked.cells[0].resumed.id)
    text, _ = compare(ours, reference)
    assert "3 of 3 cells agree" in text


def test_published_numbers_are_text_with_exact_bits(asked, reference):
    losses = (reference / "losses.tsv").read_text().splitlines()
    assert losses[0] == "leg\tstep\tloss_dtype\tloss_bits\tloss"
    first = synthetic_legs.evidence_of(asked, synthetic.verdicts(asked))(losses[1].split("\t")[0]).losses.iloc[0]
    assert int(losses[1].split("\t")[3]) == first.loss_bits
    assert (reference / "verdicts.tsv").read_text().splitlines()[0].endswith("reference\tkilled\tresumed")
    assert (reference / "figures/verdicts.svg").exists()
    assert json.loads((reference / "provenance.json").read_text())["fingerprint"]["cpu_capability"] == "AVX512"


def test_results_that_have_nothing_in_common_with_the_reference_are_no_agreement(reference, tmp_path):
    other = synthetic.experiment(worlds=(4,), kills=((6, "step"),), controls=False)
    text, status = compare(results(tmp_path / "ours", other, synthetic.verdicts(other)), reference)
    assert status == 1
    assert text == "nothing was compared: no cell is in both, of 4 and 1"


def test_cells_of_the_same_name_made_of_other_legs_are_no_agreement(asked, reference, tmp_path):
    ours = results(tmp_path / "ours", asked, synthetic.verdicts(asked))
    path = reference / "losses.tsv"
    path.write_text(path.read_text().replace("reference-", "reference-old-").replace("resume-", "resume-old-"))
    text, status = compare(ours, reference)
    assert (text, status) == ("nothing was compared: no leg is in both, of 6 and 6", 1)


def test_cells_of_which_none_ran_on_both_machines_are_no_agreement(asked, reference, tmp_path):
    frame = synthetic.verdicts(asked, {cell.id: "not-run" for cell in asked.cells})
    text, status = compare(results(tmp_path / "ours", asked, frame), reference)
    assert (text, status) == ("nothing was compared: no cell that ran is in both, of 4 and 0", 1)


def test_fewer_cells_and_legs_in_common_are_said_before_anything_else(reference, tmp_path):
    fewer = synthetic.experiment(worlds=(1,), kills=((6, "step"),), controls=False)
    text, _ = compare(results(tmp_path / "ours", fewer, synthetic.verdicts(fewer)), reference)
    assert text.splitlines()[:2] == [
        "cells in both: 1; in the reference only: 3; in the results only: 0",
        "legs in both: 2; in the reference only: 4; in the results only: 0",
    ]


def test_numbers_of_another_version_of_the_experiment_are_seen_to_be_stale(asked, reference, tmp_path):
    ours = results(tmp_path / "ours", asked, synthetic.verdicts(asked))
    stated = json.loads((reference / "provenance.json").read_text())
    stated["experiment"]["digest"] = "0ld"
    (reference / "provenance.json").write_text(json.dumps(stated))
    cells = reference / "verdicts.tsv"
    cells.write_text(cells.read_text().replace(asked.cells[0].killed.id, "kill-other"))
    lines = compare(ours, reference)[0].splitlines()
    assert lines[0] == "published from another version of the experiment: digest 0ld → feedc0de12345678"
    assert lines[1] == "2 of 4 cells in both are made of other legs: other settings or faults"


def test_a_folder_without_reference_numbers_is_one_line(asked, tmp_path):
    ours = results(tmp_path / "ours", asked, synthetic.verdicts(asked))
    with pytest.raises(evidence.EvidenceError, match="publish"):
        compare(ours, tmp_path)
