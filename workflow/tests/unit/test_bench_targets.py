"""The table of targets: an unmet one is exit status 1, and two benches share one table."""

import pytest
import targets


def test_an_unmet_target_is_exit_status_1_and_said(capsys):
    rows = [targets.row("ratio", [8.0, 9.0, 40.0], ">= 30"), targets.row("cost, ms", [10.0, 20.0], "<= 50")]
    assert targets.report(rows) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["MET", "met"]
    assert "NOT MET" in lines[1]


def test_met_targets_and_figures_without_one_are_exit_status_0(capsys):
    assert targets.report([targets.row("ratio", [30.0], ">= 30"), targets.row("told", [1e9])]) == 0
    assert "met" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("samples", "target", "met"),
    [
        ([1, 2, 99], "<= 2", "yes"),
        ([1, 3, 3], "<= 2", "no"),
        ([1, 30, 31], ">= 30", "yes"),
        ([29, 29, 99], ">= 30", "no"),
    ],
)
def test_the_median_decides_in_the_direction_of_the_target(samples, target, met):
    assert targets.row("figure", samples, target)["met"] == met


def test_a_figure_without_samples_or_with_an_unreadable_target_is_an_error():
    with pytest.raises(ValueError, match="no sample"):
        targets.row("figure", [])
    with pytest.raises(ValueError, match="neither"):
        targets.row("figure", [1.0], "< 2")


def test_a_second_bench_adds_its_rows_and_replaces_only_its_own(tmp_path):
    path = tmp_path / "bench/targets.tsv"
    targets.merge([targets.row("speed", [1.0], ">= 1"), targets.row("size", [5.0], "<= 1")], path)
    targets.merge([targets.row("scale", [3.0])], path)
    held = targets.merge([targets.row("size", [0.5], "<= 1")], path)
    assert held == targets.read(path)
    assert [(row["figure"], row["median"], row["met"]) for row in held] == [
        ("speed", "1", "yes"),
        ("size", "0.5", "yes"),
        ("scale", "3", ""),
    ]
