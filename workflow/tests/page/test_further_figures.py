"""Figures that an experiment asks for: detection times, trajectories of ranks that disagree."""

import dataclasses
import re
from types import SimpleNamespace

import pandas as pd
import pytest
import synthetic
from takeback.figures import further, style
from takeback.figures.further import detection, trajectories
from test_figures import texts
from test_report import page


@pytest.fixture
def asked():
    """Two causes at two time-outs and the library's own; a run is ended 20 s after its fault."""
    made = synthetic.experiment(
        worlds=(2,),
        kills=((6, "step"),),
        faults=("sigkill", "sigstop"),
        controls=False,
        **{"trainer.timeout": (0, 2, 5)},
    )
    cells = [dataclasses.replace(cell, lives=(dataclasses.replace(cell.killed, notice=20.0), cell.resumed))
             for cell in made.cells]  # fmt: skip
    return dataclasses.replace(made, cells=tuple(cells), figures=("detection",))


@pytest.fixture
def frame(asked):
    """SIGKILL is seen at once, SIGSTOP after the time-out, and not at all with the library's own."""
    frame = synthetic.verdicts(asked)
    silent, own = frame.fault == "sigstop", frame["trainer.timeout"] == 0
    frame.loc[silent, "detect_s"] = frame.loc[silent, "trainer.timeout"] + 0.01
    frame.loc[silent, "survivors_saw"] = "RuntimeError: Timed out"
    frame.loc[silent & own, "detect_s"] = None
    frame.loc[silent & own, "survivors_saw"] = "nothing"
    frame.loc[silent & ~own, "blames_other"] = True
    return frame


def test_detection_is_drawn_by_cause_and_time_out_and_what_was_not_seen_says_so(asked, frame, tmp_path):
    said = texts(detection.draw(asked, frame, tmp_path / "d.svg"))
    assert {"sigkill", "sigstop", "2 s", "5 s", "the library's own", "not seen by the end"} <= set(said)
    assert said.index("2 s") < said.index("5 s") < said.index("the library's own")
    seen = detection.draw(asked, frame[frame["trainer.timeout"] > 0], tmp_path / "s.svg")
    assert "not seen by the end" not in texts(seen)


def test_the_same_data_give_the_same_bytes(asked, frame, tmp_path):
    drawn = [detection.draw(asked, frame, tmp_path / f"{n}.svg").read_bytes() for n in range(2)]
    assert drawn[0] == drawn[1]


def test_the_table_says_what_is_seen_when_and_whom_it_names(asked, frame):
    heads, rows = detection.table(asked, frame)
    assert all(len(row) == len(heads) for row in rows)
    told = {(cause, timeout): rest for cause, timeout, *rest in rows}
    assert told["sigstop", "2 s"] == ["1", "2.01 s", "RuntimeError: Timed out", "another rank"]
    assert told["sigstop", "the library's own"] == ["1", "not within 20 s", "nothing", "nobody"]
    assert told["sigkill", "5 s"][2:] == ["RuntimeError: Connection closed by peer", "nobody"]


def test_the_page_shows_the_figures_that_are_asked_for_and_no_others(asked, frame, tmp_path):
    (tmp_path / "a/figures").mkdir(parents=True)
    further.get("detection").draw(asked, frame, tmp_path / "a/figures/further-detection.svg")
    text = page(tmp_path / "a", asked, frame)
    assert detection.TITLE in text
    assert style.inline(tmp_path / "a/figures/further-detection.svg") in text
    assert re.search(r"<td>sigstop</td><td>2 s</td>", text)
    plain = page(tmp_path / "b", dataclasses.replace(asked, figures=()), frame)
    assert detection.TITLE not in plain


def test_the_page_says_whether_anything_ran_beside_what_it_timed(asked, frame, tmp_path):
    assert "Other runs ran beside these" in page(tmp_path / "a", dataclasses.replace(asked, figures=()), frame)
    alone = dataclasses.replace(asked, alone=True, figures=())
    assert "No other run of this workflow ran beside these" in page(tmp_path / "b", alone, frame)


def told(restored: dict[int, int], last: int) -> SimpleNamespace:
    """Losses and events of ranks that restored these steps; half the step is the loss."""
    rows = [(rank, step) for rank, first in restored.items() for step in range(first + 1, last + 1)]
    losses = [
        {"attempt": 0, "rank": rank, "step": step, "loss": step / 2, "loss_bits": step + rank, "loss_dtype": "float32"}
        for rank, step in rows
    ]
    events = [{"kind": "restored", "rank": rank, "step": first} for rank, first in restored.items()]
    return SimpleNamespace(losses=pd.DataFrame(losses), events=pd.DataFrame(events))


@pytest.mark.parametrize(
    ("second", "words"),
    [(4, {"rank 0, from step 8", "rank 1, from step 4"}), (8, {"all ranks restored the same step"})],
)
def test_ranks_that_went_on_from_steps_of_their_own_are_drawn_each_by_itself(asked, frame, tmp_path, second, words):
    cell = asked.cells[0]
    made = dataclasses.replace(asked, cells=(cell,))
    legs = {cell.reference.id: told({0: 0, 1: 0}, 12), cell.resumed.id: told({0: 8, 1: second}, 12)}
    assert words <= set(texts(trajectories.draw(made, frame, tmp_path / "t.svg", legs.__getitem__)))


def test_the_table_of_trajectories_has_the_cells_whose_ranks_restored_different_steps(asked, frame):
    frame.loc[0, "diagnosis"] = "ranks restored different steps: rank 0 → 8, rank 1 → 4"
    assert [row[0] for row in trajectories.table(asked, frame)[1]] == [frame.cell[0]]
