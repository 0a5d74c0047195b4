"""Which cells a time budget chooses, in which order, and how much time it takes them for."""

import itertools
import json
import os
import subprocess
import sys

import pytest
from takeback import budget, clock, experiment

ASKED = experiment.load(experiment.ROOT / "experiments/kill_resume.yaml")
WORK = {leg.id: budget.work_of(leg) for leg in ASKED.legs.values()}
TELLING = [budget.things("x", cell) for cell in ASKED.cells]


def legs_of(one):
    return [[leg.id for leg in cell.legs] for cell in one.cells]


def ordered(one=ASKED, cost=WORK):
    numbers = budget.order(legs_of(one), [budget.things("x", cell) for cell in one.cells], cost)
    assert sorted(numbers) == list(range(len(one.cells)))
    return [one.cells[number] for number in numbers]


def planned(runs, seconds=300.0, asked=ASKED, **more):
    usual = {"now": 0.0, "slow": 1.0, "cores": 2, "can_run": lambda leg: leg.backend == "gloo"}
    return budget.plan({asked.name: asked}, end=seconds, runs=runs, **{**usual, **more})


def ran(runs, seconds):
    """Folders of legs that have run one after the other; ``seconds`` of each."""
    now = 0.0
    for leg, took in seconds.items():
        (runs / leg).mkdir(parents=True)
        for name, moment in (("leg.json", now), ("events.parquet", now + took)):
            (runs / leg / name).touch()
            os.utime(runs / leg / name, (moment, moment))
        now += took


@pytest.mark.parametrize(
    ("said", "meant"), [(600, 600), ("90", 90), ("90s", 90), ("10m", 600), ("1h", 3600), ("1.5h", 5400), (" 2 m ", 120)]
)
def test_a_budget_is_seconds_minutes_or_hours(said, meant):
    assert budget.seconds(said) == meant


@pytest.mark.parametrize("said", ["", None, True, "soon", "0", "0s", "-5", "10 parsecs", "1h30", "nan", {"a": 1}])
def test_a_budget_that_is_no_time_says_how_to_write_one(said):
    with pytest.raises(budget.BudgetError, match=r"^budget=.*: is no time; write it as 90s, 10m or 1h$"):
        budget.seconds(said)


@pytest.mark.parametrize("cost", [WORK, dict.fromkeys(WORK, 1.0), dict.fromkeys(WORK, 0.0)])
def test_every_value_is_seen_once_before_a_cell_shows_nothing_new(cost):
    seen, whole = set(), set().union(*TELLING)
    for cell in ordered(cost=cost):
        new = budget.things("x", cell).keys() - seen
        assert new or seen == whole
        seen |= new


def test_then_pairs_of_values_are_seen_before_a_cell_shows_no_new_pair():
    pairs, whole = set(), set()
    for shown in TELLING:
        whole |= set(itertools.combinations(sorted(shown), 2))
    stale = False
    for cell in ordered():
        shown = budget.things("x", cell)
        new = set(itertools.combinations(sorted(shown), 2)) - pairs
        assert new or cell.control or pairs == whole or not stale
        stale = stale or not (new or cell.control)
        pairs |= new


def test_a_changed_world_and_the_controls_come_early(monkeypatch):
    def places():
        return [number for number, cell in enumerate(ordered()) if cell.control]

    assert any(cell.axes["world"] != cell.axes["resume_world"] for cell in ordered()[:2])
    early = places()
    monkeypatch.setattr(budget, "WEIGHT", {})
    assert early[0] < places()[0]
    assert sum(early) < sum(places())


def test_a_value_seen_on_one_backend_is_not_seen_on_another():
    seen = {(cell.axes["backend"], cell.axes["world"]) for cell in ordered()[:30] if not cell.control}
    assert {("gloo", 1), ("gloo", 2), ("gloo", 4), ("nccl", 1), ("nccl", 2)} <= seen


def test_a_control_does_not_stand_for_the_cells_that_are_to_survive():
    control = next(cell for cell in ASKED.cells if cell.control)
    assert [thing[2] for thing in budget.things("x", control)] == ["control"]


def test_a_leg_that_is_paid_costs_nothing():
    legs = [["reference", "kill", "resume"], ["other", "cheap"], ["reference", "kill", "dear"]]
    cost = {"reference": 5.0, "kill": 5.0, "resume": 1.0, "other": 4.0, "cheap": 1.0, "dear": 3.0}
    telling = [{("a", 1): 9}, {("b", 1): 1}, {("c", 1): 1}]
    assert budget.order(legs, telling, cost) == [0, 2, 1]


def test_the_order_is_the_same_each_time():
    text = "import test_budget; print(*(cell.id for cell in test_budget.ordered()))"
    folder = os.path.dirname(__file__)
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", text], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.stdout.split() == [cell.id for cell in ordered()], done.stderr


def test_with_time_enough_every_cell_runs_and_else_the_first_of_the_order(tmp_path):
    assert planned(tmp_path, 3600).experiments[ASKED.name].cells == ASKED.cells
    few = planned(tmp_path, 60).experiments[ASKED.name].cells
    many = planned(tmp_path, 120).experiments[ASKED.name].cells
    assert 0 < len(few) < len(many) < len(ASKED.cells)
    first = next(cell for cell in ordered() if cell.axes["backend"] == "gloo")
    assert first in few


def test_verdicts_and_page_are_left_their_time(tmp_path):
    plan = planned(tmp_path, 120)
    chosen = plan.experiments[ASKED.name]
    work = sum(WORK[leg] for leg in chosen.legs)
    assert budget.START + work / 2 <= plan.until <= 120 - budget.JUDGE
    slow = planned(tmp_path, 120, slow=2.0)
    assert slow.until < plan.until
    assert len(slow.experiments[ASKED.name].cells) < len(chosen.cells)


def test_the_legs_of_the_first_cells_come_first(tmp_path):
    plan = planned(tmp_path, 120)
    assert plan.priority.keys() == plan.experiments[ASKED.name].legs.keys()
    first = max(plan.priority, key=plan.priority.get)
    assert first == ordered()[0].reference.id
    assert min(plan.priority.values()) > 0


def test_what_has_run_costs_nothing_and_is_kept(tmp_path):
    before = planned(tmp_path, 70).experiments[ASKED.name]
    cores = min(2, len(os.sched_getaffinity(0)))
    ran(tmp_path, {leg: WORK[leg] / cores for leg in before.legs})  # as fast as planned
    after = planned(tmp_path, 70).experiments[ASKED.name]
    assert {cell.id for cell in before.cells} < {cell.id for cell in after.cells}


def test_a_machine_that_was_slow_is_trusted_with_less(tmp_path):
    legs = list(planned(tmp_path, 70).experiments[ASKED.name].legs)[: budget.ENOUGH]
    ran(tmp_path / "fast", dict.fromkeys(legs, 1.0))
    ran(tmp_path / "slow", dict.fromkeys(legs, 10.0))
    fast, slow = (planned(tmp_path / name, 120).experiments[ASKED.name].cells for name in ("fast", "slow"))
    assert len(slow) < len(fast)
    assert budget.speed(WORK, tmp_path / "fast") == pytest.approx(10 * budget.speed(WORK, tmp_path / "slow"))


def test_runs_side_by_side_count_their_time_once():
    assert budget.covered([(0, 4), (1, 2), (3, 6), (8, 9)]) == 7


def test_cells_that_can_not_run_here_cost_little_and_come_last(tmp_path):
    plan = planned(tmp_path, 120)
    assert all(cell.axes["backend"] == "gloo" for cell in plan.experiments[ASKED.name].cells)
    idle = planned(tmp_path, 90, can_run=lambda leg: False).experiments[ASKED.name]
    assert idle.cells == ASKED.cells


def test_no_time_for_any_cell_is_one_line_with_the_cure(tmp_path):
    with pytest.raises(budget.BudgetError, match=r"^budget: too little for any cell.*give more, such as budget=\d+s$"):
        planned(tmp_path, 10)


def test_only_runs_that_were_left_out_are_removed(tmp_path):
    ran(tmp_path, {"whole": 1.0, "cut": 1.0})
    (tmp_path / "cut" / clock.MARK).touch()
    budget.forget(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_without_a_budget_the_clock_never_runs_out(monkeypatch):
    monkeypatch.delenv(clock.VARIABLE, raising=False)
    assert clock.left() == float("inf")
    monkeypatch.setenv(clock.VARIABLE, json.dumps(0.0))
    assert clock.left() < 0
