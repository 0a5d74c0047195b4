"""From a sample of the plain loop's runs to what the whole loop costs, with shared references and without."""

import random

import plain
import pytest
import yaml
from takeback import experiment

EACH = {"reference": 3.0, "killed": 2.0, "resumed": 4.0}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """27 cells, of 3 references and 9 killed runs."""
    whole = yaml.safe_load((experiment.ROOT / "experiments/kill_resume.yaml").read_text())
    path = tmp_path_factory.mktemp("bench") / "matrix.yaml"
    path.write_text(yaml.safe_dump({key: whole[key] for key in ("title", "question", "trainer", "matrix", "expect")}))
    return experiment.load(path).cells


def runs(cells, seconds):
    return [
        {"role": role, "cell": cell.id, "world": leg.world, "wall": seconds(role, leg.world)}
        for cell in cells
        for role, leg in plain.runs_of(cell).items()
    ]


def test_a_cell_of_the_plain_loop_costs_its_three_runs(cells):
    found = runs(plain.sample(cells, 1, random.Random(0)), lambda role, _: EACH[role])
    assert plain.nothing_shared(found, cells, "wall") == pytest.approx(9)


def test_with_shared_references_each_distinct_run_counts_once(cells):
    found = runs(plain.sample(cells, 1, random.Random(0)), lambda role, _: EACH[role])
    assert plain.shared(found, cells, "wall") == pytest.approx((3 * 3 + 9 * 2 + 27 * 4) / 27)


def test_each_world_of_the_kill_counts_by_its_cells(cells):
    few = [cell for cell in cells if cell.axes["world"] == 1] + [c for c in cells if c.axes["world"] == 4][:1]
    found = runs(plain.sample(few, 1, random.Random(0)), lambda role, world: world if role == "killed" else 0.0)
    assert plain.nothing_shared(found, few, "wall") == pytest.approx((9 * 1 + 1 * 4) / 10)


def test_the_sample_has_each_world_and_is_the_same_for_the_same_seed(cells):
    drawn = [[cell.id for cell in plain.sample(cells, 2, random.Random(seed))] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sorted(name.split("-")[1] for name in drawn[0]) == ["w1", "w1", "w2", "w2", "w4", "w4"]
    assert len(set(drawn[0])) == 6
