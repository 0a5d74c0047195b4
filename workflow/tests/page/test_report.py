"""The page: the answer that it gives, that it needs nothing else, and that it stays small."""

import re

import pandas as pd
import pytest
import synthetic
import synthetic_legs
from takeback import evidence, provenance, report
from takeback.answer import answer
from takeback.figures import style
from takeback.figures.heatmap import heatmap


def page(folder, asked, frame, draw=False):
    folder.mkdir(exist_ok=True)
    evidence.write_table(folder / "verdicts.parquet", "verdicts", frame)
    claim = {"claim": "A claim with <b>.", "holds": "no", "cells": "0 of 1"}
    pd.DataFrame([claim]).to_csv(folder / "findings.tsv", sep="\t", index=False)
    legs = [synthetic_legs.provenance(cell.resumed) for cell in asked.cells[:5]]
    provenance.write(provenance.of_experiment(asked, frame, legs), folder)
    if draw:
        heatmap(asked, frame, folder / "figures/verdicts.svg")
    return report.write(asked, folder).read_text()


@pytest.fixture
def asked():
    return synthetic.experiment(backends=("gloo", "nccl"))


def test_all_as_predicted_is_a_yes_with_what_was_done(asked):
    found = answer(synthetic.verdicts(asked))
    assert found.word == "Yes."
    assert found.sentence == (
        "Killed at 4 points on 1, 2 or 4 ranks and resumed on 1, 2 or 4, the run is the same run, bit for bit, "
        "in all 36 cells."
    )
    assert found.more == (
        "9 of these, killed before the first checkpoint, rightly started again.",
        "All 7 negative controls (failures planted on purpose) were caught.",
        "36 cells did not run: no CUDA device.",
    )


def test_what_a_budget_has_left_out_is_said_in_the_answer_and_counted_apart(asked):
    frame = synthetic.verdicts(asked, {cell.id: "not-run" for cell in asked.cells[:10]})
    frame.loc[frame.index < 10, "diagnosis"] = "budget"
    found = answer(frame)
    assert found.word == "Yes."
    assert found.sentence.endswith("bit for bit, in all 26 cells that there was time for.")
    assert found.more[-1] == "46 cells did not run: budget (10); no CUDA device (36)."


def test_a_surprise_is_a_no_that_names_the_first_one(asked):
    found = answer(synthetic.verdicts(asked, {asked.cells[2].id: "different"}))
    assert (found.tone, found.word) == ("bad", "No.")
    assert found.sentence.startswith("1 of 43 cells came out other than predicted")
    assert f"The first is {asked.cells[2].id}: expected equal, got different" in found.more[0]


def test_a_negative_control_that_was_not_caught_is_a_no(asked):
    found = answer(synthetic.verdicts(asked, {asked.cells[-1].id: "equal"}))
    assert found.word == "No."
    assert "1 of 7 negative controls (failures planted on purpose) came out otherwise." in found.more


def test_nothing_ran_is_neither_yes_nor_no():
    asked = synthetic.experiment(backends=("nccl",))
    found = answer(synthetic.verdicts(asked))
    assert (found.tone, found.word) == ("none", "Not run.")
    assert "no CUDA device" in found.sentence


def test_predicted_differences_are_no_yes():
    asked = synthetic.experiment(controls=False)
    frame = synthetic.verdicts(asked, {asked.cells[0].id: "different"}).assign(surprise=False)
    assert answer(frame).word == "As predicted."
    assert "35 equal and 1 different" in answer(frame).sentence


def test_bit_for_bit_does_not_cover_what_was_not_compared(asked):
    whole = synthetic.verdicts(asked)
    frame = whole.copy()
    frame.loc[:2, "states_compared"] = 0
    frame.loc[:0, "samples_equal"] = None
    found = answer(frame)
    assert found.sentence.endswith(
        "bit for bit, in all 36 cells; in 2 cells no states were compared, only losses and samples; "
        "in 1 cell no states and no samples were compared, only losses."
    )
    assert found.numbers[0] == (36, 36, "cells equal, bit for bit in what was compared")
    assert "only" not in answer(whole).sentence
    wrong = answer(frame.assign(surprise=frame.index == 5))
    assert any(one.startswith("In 2 cells no states were compared") for one in wrong.more)


def test_the_page_says_what_each_cell_compared(asked, tmp_path):
    frame = synthetic.verdicts(asked)
    frame["samples_equal"] = None
    text = page(tmp_path / "kill_resume", asked, frame)
    assert "<td>24 losses, 900 states, no samples</td>" in text
    assert "<td>no losses, no states, no samples</td>" in text  # a cell that did not run
    assert "what was not compared is not covered" in text


def test_times_are_said_to_be_taken_beside_other_runs(asked, tmp_path):
    text = page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked))
    warning = "Other runs ran beside these; take them as an order of magnitude, not a benchmark."
    assert 0 < text.index('id="times"') < text.index(warning) < text.index('class="numbers"')


def test_which_losses_are_shown_follows_from_the_verdicts(asked, tmp_path):
    figures = tmp_path / "kill_resume/figures"
    figures.mkdir(parents=True)
    for name in ("gloo-w1", "gloo-w2", "nccl-w1", "gone-w1"):  # a run may be called anything
        (figures / f"overlay-{name}.svg").write_text(f'<svg id="{name}"><text>sampler did not run</text></svg>')
    text = page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked))
    shown = re.findall(r'aria-label="Losses: (\S+), scrolls', text)
    assert shown == ["gloo-w1", "gloo-w2"]
    assert text.count("No losses are shown of nccl at world 1, nccl at world 2, nccl at world 4: none of") == 1


def test_the_page_uses_one_word_for_one_thing(asked, tmp_path):
    text = page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked), draw=True)
    assert "undisturbed" not in text
    first, heading = text.index("planted on purpose"), text.index('id="controls"')
    assert first < heading
    assert "planted failure" not in text


def test_the_comparison_stands_in_words_and_its_clauses_can_be_opened(asked, tmp_path):
    text = page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked))
    section = text[text.index('id="provenance"') : text.index('id="cells"')]
    closed = re.sub(r"<details>.*?</details>", "", section, flags=re.S)
    assert "was compared with the uninterrupted run at the same world" in closed
    assert "state digests by name;" not in closed
    assert len(re.sub(r"<[^>]+>|\s+", " ", closed).split()) < 300  # half a page


def test_the_page_needs_nothing_from_outside(asked, tmp_path):
    text = page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked), draw=True)
    links = re.findall(r'(?:src|href|action)="([^"]*)"|url\(([^)]*)\)|@import', text)
    assert all((a or b).startswith(("#", "data:")) for a, b in links)
    assert "<script" not in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_a_surprise_comes_with_its_log_and_a_command(asked, tmp_path):
    wrong = asked.cells[2]
    text = page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked, {wrong.id: "different"}))
    assert f"results/logs/leg/{wrong.resumed.id}.log" in text
    assert f"results/runs/{wrong.resumed.id}/events.parquet" in text
    assert text.index("No.") < text.index("The question.") < text.index('id="findings"') < text.index('id="surprises"')


def test_words_from_outside_are_escaped(asked, tmp_path):
    text = page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked))
    assert "A claim with &lt;b&gt;." in text


def test_every_verdict_and_every_cell_is_on_the_page(asked, tmp_path):
    text = page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked))
    assert set(report.MEANING) == set(style.VERDICTS)
    assert all(cell.id in text for cell in asked.cells)


def test_ten_thousand_cells_stay_under_ten_megabytes(asked, tmp_path):
    frame = synthetic.verdicts(asked, {asked.cells[9].id: "different"})
    frame = pd.concat([frame.assign(cell=frame.cell + f"-seed={n}") for n in range(130)], ignore_index=True)
    assert len(frame) > 10_000
    text = page(tmp_path / "kill_resume", asked, frame)
    assert len(text.encode()) < 10_000_000


def test_a_missing_file_is_one_line_that_names_it(asked, tmp_path):
    with pytest.raises(evidence.EvidenceError, match=r"verdicts\.parquet"):
        report.write(asked, tmp_path)
    page(tmp_path / "kill_resume", asked, synthetic.verdicts(asked))
    (tmp_path / "kill_resume/findings.tsv").unlink()
    with pytest.raises(evidence.EvidenceError, match="findings"):
        report.write(asked, tmp_path / "kill_resume")
