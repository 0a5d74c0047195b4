"""Expansion of blocks to cells, and of cells to legs that are shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from takeback import experiment, matrix
from takeback.errors import ExperimentError
from takeback.leg import Leg, processes_of

AXES = st.fixed_dictionaries(
    {
        "world": st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, unique=True),
        "resume_world": st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, unique=True),
        "kill_step": st.lists(st.integers(1, 24), min_size=1, max_size=4, unique=True),
    }
)


@given(AXES)
def test_a_block_is_the_product_of_its_axes_and_every_point_is_there_once(block):
    points = list(matrix.product(block))
    assert len(points) == len(block["world"]) * len(block["resume_world"]) * len(block["kill_step"])
    ids = {matrix.cell_id(point) for point in points}
    assert len(ids) == len(points)


@given(AXES, AXES)
def test_an_exclude_takes_out_exactly_the_points_that_agree_in_all_its_axes(block, out):
    kept = [point for point in matrix.product(block) if not matrix.matches(point, out)]
    gone = [point for point in matrix.product(block) if matrix.matches(point, out)]
    assert len(kept) + len(gone) == len(list(matrix.product(block)))
    assert all(all(point[axis] in values for axis, values in out.items()) for point in gone)
    assert all(any(point[axis] not in values for axis, values in out.items()) for point in kept)


def test_an_include_takes_what_it_does_not_name_from_the_matrix():
    points = list(matrix.product({"kill_step": 8}, {"world": [1, 2], "kill_step": [2, 6]}))
    assert [(point["world"], point["kill_step"]) for point in points] == [(1, 8), (2, 8)]


def test_same_and_other_speak_of_the_world_that_was_killed():
    same, other = {"world": 2, "resume_world": 2}, {"world": 2, "resume_world": 4}
    assert matrix.matches(same, {"resume_world": "same"})
    assert not matrix.matches(other, {"resume_world": "same"})
    assert matrix.matches(other, {"resume_world": "other"})
    assert not matrix.matches(same, {"resume_world": "other"})


def kill_resume():
    return experiment.load(experiment.ROOT / "experiments/kill_resume.yaml")


def test_one_killed_leg_serves_the_resumes_at_every_world():
    cells = {cell.id: cell for cell in kill_resume().cells}
    killed = {cells[f"gloo-w4-k6-r{world}-sigkill"].killed.id for world in (1, 2, 4)}
    assert len(killed) == 1
    resumed = {cells[f"gloo-w4-k6-r{world}-sigkill"].resumed.id for world in (1, 2, 4)}
    assert len(resumed) == 3


def test_a_control_breaks_the_resumed_run_only_and_shares_the_rest():
    cells = {cell.id: cell for cell in kill_resume().cells}
    good, broken = cells["gloo-w2-k6-r2-sigkill"], cells["gloo-w2-k6-r2-sigkill-resume_forget=optimizer"]
    assert (good.reference.id, good.killed.id) == (broken.reference.id, broken.killed.id)
    assert good.resumed.id != broken.resumed.id


def test_the_id_of_a_leg_changes_with_anything_that_determines_it():
    leg = kill_resume().cells[0].resumed
    import dataclasses

    others = [
        dataclasses.replace(leg, **change)
        for change in (
            {"world": 8},
            {"backend": "nccl"},
            {"repeat": 1},
            {"parent": None},
            {"hardware": {"threads": 2}},
            {"trainer": {**leg.trainer, "settings": {"seed": 1}}},
            {"launcher": "other"},
        )
    ]
    digests = {each.id.rpartition("-")[2] for each in (leg, *others)}  # the readable part of an id says less
    assert len(digests) == 1 + len(others)


def test_the_backends_own_sum_at_another_world_is_compared_with_a_handover():
    cells = {cell.id: cell for cell in kill_resume().cells}
    cell = cells["gloo-w4-k19-r2-sigkill-reduction=allreduce"]
    assert cell.against == "changed topology, handover control"
    assert cell.reference.trainer["settings"]["handover"] == "4:16:2"
    assert (cell.original.world, cell.original.trainer["settings"].get("handover")) == (4, None)
    assert cell.original in cell.legs
    assert cell.reference.world == 4


def test_the_default_matrix_is_the_full_product_with_its_four_kill_steps():
    cells = [cell for cell in kill_resume().cells if not cell.control and cell.axes["backend"] == "gloo"]
    seen = {(c.axes["world"], c.axes["resume_world"], c.axes["kill_step"]) for c in cells}
    assert {(w, r, k) for w in (1, 2, 4) for r in (1, 2, 4) for k in (2, 6, 8, 19)} <= seen
    assert all(cell.expect.verdict == "equal" for cell in cells)


def test_before_the_first_save_there_is_nothing_to_hand_over(tmp_path):
    cell = one_cell(tmp_path, {"name": "reference"}, kill_step=2, trainer={"reduction": "allreduce"})
    assert cell.against == "changed topology, nothing saved to hand over"
    assert (cell.reference.world, cell.reference.trainer["settings"].get("handover")) == (4, None)


def test_nothing_is_said_of_the_reduction_of_somebody_elses_trainer(tmp_path):
    trainer = {"command": ["train", "{checkpoints}"], "settings": {"reduction": "allreduce"}}
    cell = one_cell(tmp_path, trainer, kill_step=6)
    assert cell.against == "changed topology, the trainer's own reduction"
    assert cell.reference.trainer["settings"] == {"reduction": "allreduce"}


def test_a_setting_that_is_so_anyway_needs_no_run_of_its_own(tmp_path):
    plain = one_cell(tmp_path, {"name": "reference"}, kill_step=6)
    spelt = {"trainer": {"loader": "inline"}, "resume_trainer": {"damaged": "refuse"}}
    same = one_cell(tmp_path, {"name": "reference"}, kill_step=6, **spelt)
    assert [leg.id for leg in same.legs] == [leg.id for leg in plain.legs]
    assert same.axes["trainer.loader"] == "inline"
    other = {"name": "reference", "settings": {"loader": "workers"}}
    assert one_cell(tmp_path, other, kill_step=6, **spelt).reference.trainer["settings"] == {"loader": "inline"}


def test_cells_that_differ_in_what_must_not_change_a_bit_share_a_reference(tmp_path):
    plain = one_cell(tmp_path, {"name": "reference"}, kill_step=6)
    cell = one_cell(tmp_path, {"name": "reference"}, kill_step=6, trainer={"timeout": 2, "rng": "stream"})
    assert cell.reference.trainer["settings"] == cell.twin.trainer["settings"] == {"rng": "stream"}
    assert cell.killed.trainer["settings"] == cell.resumed.trainer["settings"] == {"rng": "stream", "timeout": 2}
    timed = one_cell(tmp_path, {"name": "reference"}, kill_step=6, trainer={"timeout": 2})
    assert (timed.reference.id, timed.twin.id) == (plain.reference.id, plain.twin.id)
    whole = one_cell(tmp_path, {"name": "reference", "settings": {"timeout": 2}}, kill_step=6)
    assert whole.reference.trainer["settings"] == {"timeout": 2}, "what is set for all runs is set for the reference"


def test_a_short_deadline_is_for_the_runs_that_may_hang(tmp_path):
    plain, short, long = (
        one_cell(tmp_path, {"name": "reference"}, {"deadline": seconds}, kill_step=6) for seconds in (120, 45, 600)
    )
    assert short.reference.id == plain.reference.id
    assert (short.killed.deadline, short.resumed.deadline) == (45, 45)
    assert long.reference.deadline == 600


def test_the_run_that_goes_on_has_other_hardware_and_the_rest_has_what_the_cell_names(tmp_path):
    other = {"hardware": {"capability": "avx2"}, "resume_hardware": {"threads": 2}}
    cell = one_cell(tmp_path, {"name": "reference"}, kill_step=6, **other)
    assert [leg.hardware for leg in cell.legs] == [
        *3 * [{"capability": "avx2", "threads": 1}],
        {"capability": "avx2", "threads": 2},
    ]
    assert cell.resumed.label == "resume-gloo-w2to4-avx2-t2"
    assert (cell.axes["hardware"], cell.axes["resume_hardware"]) == ("avx2", "t2")
    assert matrix.matches(cell.axes, other)
    assert not matrix.matches(cell.axes, {"resume_hardware": {"threads": 3}})


def test_a_cell_that_names_no_hardware_has_the_usual_one_and_no_axis_of_it(tmp_path):
    cell = one_cell(tmp_path, {"name": "reference"}, kill_step=6)
    assert {"threads": 1} == cell.reference.hardware == cell.resumed.hardware
    assert not {"hardware", "resume_hardware"} & cell.axes.keys()


def test_the_instant_of_a_random_fault_is_the_same_on_any_hardware(tmp_path):
    random = {"kill_step": 6, "point": "random"}
    usual = one_cell(tmp_path, {"name": "reference"}, **random).killed.faults[0]["pause"]
    assert (
        one_cell(tmp_path, {"name": "reference"}, **random, hardware={"threads": 2}).killed.faults[0]["pause"] == usual
    )


def test_several_lives_on_other_hardware_are_refused(tmp_path):
    lives = {"kill_step": 6, "then": [{"kill_step": 9}], "resume_hardware": {"threads": 2}}
    with pytest.raises(ExperimentError, match="lives on other hardware have no reference of their own"):
        one_cell(tmp_path, {"name": "reference"}, **lives)


SHARDED = {"name": "reference", "settings": {"strategy": "fsdp", "heads": 4, "shards": 24}}


def test_cells_of_many_topologies_share_the_reference_that_is_named(tmp_path):
    one = {"world": 1, "trainer": {"strategy": "single"}}
    cells = [one_cell(tmp_path, SHARDED, kill_step=6, world=world, reference=one) for world in (2, 4)]
    assert len({cell.reference.id for cell in cells}) == 1
    assert (cells[0].reference.world, cells[0].reference.trainer["settings"]["strategy"]) == (1, "single")
    assert cells[0].against == "one run on 1 rank, single, fixed-order reduction"
    assert "reference" not in cells[0].axes
    with pytest.raises(ExperimentError, match=r"reference: another run is a measure with reduction: fixed-order alone"):
        one_cell(tmp_path, SHARDED, kill_step=6, reference=one, trainer={"reduction": "allreduce"})


@pytest.mark.parametrize(
    ("strategy", "resume", "against"),
    [
        ("fsdp", {}, "changed topology, fixed-order reduction"),
        ("fsdp", {"strategy": "ddp"}, "changed topology, fixed-order reduction"),
        ("fsdp+tp", {}, "changed topology, fixed-order reduction"),
        ("tp", {}, "changed topology, handover control"),
        ("fsdp", {"strategy": "tp"}, "changed topology, handover control"),
    ],
)
def test_sums_within_a_layer_in_other_parts_are_compared_with_a_handover(tmp_path, strategy, resume, against):
    axes = {"kill_step": 6, "trainer": {"strategy": strategy}, "resume_trainer": resume}
    cell = one_cell(tmp_path, SHARDED, world=2, resume_world=4, **axes)
    assert cell.against == against
    handover = cell.reference.trainer["settings"].get("handover")
    assert handover == ("2:4:4:tp" if resume == {"strategy": "tp"} else "2:4:4" if strategy == "tp" else None)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"trainer": {"strategy": "hsdp"}, "world": 3}, r"matrix.*\.world: strategy hsdp on 3 ranks: shard_ranks"),
        ({"resume_trainer": {"strategy": "single"}}, r"resume_world: strategy single on 4 ranks"),
        ({"trainer": {"strategy": "tp"}, "resume_world": 3}, r"resume_world: 3 tensor-parallel ranks do not divide"),
        ({"trainer": {"strategy": "fsdp+tp"}, "resume_world": 10}, r"resume_world: 10 does not divide the 24 shards"),
        ({"trainer": {"strategy": "fsdp", "format": "dcp"}, "point": "save.commit"}, r"rank 0 alone comes by"),
    ],
)
def test_a_topology_that_no_run_can_have_is_refused(tmp_path, axes, words):
    with pytest.raises(ExperimentError, match=words):
        one_cell(tmp_path, SHARDED, **{"kill_step": 8, **axes})


def test_settings_of_another_trainer_that_are_named_like_ours_mean_nothing_here(tmp_path):
    trainer = {"command": ["train", "{checkpoints}"], "settings": {"strategy": "zero3", "shards": 8, "heads": 3}}
    assert one_cell(tmp_path, trainer, kill_step=6).against == "changed topology, the trainer's own reduction"


def test_in_a_directory_of_all_ranks_each_comes_by_the_points_of_its_writing(tmp_path):
    axes = {"kill_step": 8, "point": "save.write", "trainer": {"format": "dcp"}}
    assert one_cell(tmp_path, SHARDED, **axes).killed.faults[0]["ranks"] == "last"


def test_a_resumed_run_is_told_to_have_what_the_killed_one_had(tmp_path):
    import yaml

    document = {
        "title": "t",
        "question": "q?",
        "trainer": {"name": "reference"},
        "matrix": {"world": 2, "kill_step": 6, "trainer": {"strategy": ["ddp", "fsdp"]}},
        "include": [{"trainer": {"strategy": "hsdp"}, "resume_trainer": {"strategy": "ddp"}}],
        "expect": {"verdict": "equal", "because": "b"},
    }
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(document))
    axes = [cell.axes for cell in experiment.load(tmp_path / "one.yaml").cells]
    assert [(a["trainer.strategy"], a["resume_trainer.strategy"]) for a in axes] == [
        ("ddp", "ddp"),
        ("fsdp", "fsdp"),
        ("hsdp", "ddp"),
    ]


def one_cell(folder, program, more=(), /, **axes):
    import yaml

    document = {
        "title": "t",
        "question": "q?",
        "trainer": program,
        "matrix": {"world": 2, "resume_world": 4, **axes},
        "expect": {"verdict": "equal", "because": "b"},
        **dict(more),
    }
    (folder / "one.yaml").write_text(yaml.safe_dump(document))
    return experiment.load(folder / "one.yaml").cells[0]


def test_a_launcher_by_its_name_is_one_with_its_usual_parameters():
    point, mapped = (next(matrix.product({"launcher": given})) for given in ("torchrun", {"kind": "torchrun"}))
    assert point["launcher"] == mapped["launcher"] == {"kind": "torchrun"}
    assert matrix.matches(mapped, {"launcher": "torchrun"})


def test_where_ranks_run_on_other_hosts_all_runs_of_a_cell_do():
    found = experiment.load(experiment.ROOT / "experiments/hosts.yaml")
    for cell in found.cells:
        assert {leg.launcher["kind"] for leg in cell.legs} == {"hosts"}
    elastic = experiment.load(experiment.ROOT / "experiments/elastic_restart.yaml")
    assert {cell.reference.launcher for cell in elastic.cells} == {"local"}


def test_a_leg_says_how_many_processes_it_has_where_that_is_not_its_world():
    mesh, ranks = (Leg({"command": ["train"], "settings": {}}, backend, 4) for backend in ("xla", "gloo"))
    assert (mesh.spec["processes"], processes_of(mesh.spec)) == (1, 1)
    assert "processes" not in ranks.spec and processes_of(ranks.spec) == 4


def test_of_a_mesh_there_is_one_process_to_strike_and_one_launcher_that_starts_it(tmp_path):
    block = {"backend": "xla", "world": 4, "kill_step": 2}
    trainer = {"command": ["train", "{checkpoints}"]}
    document = {"trainer": trainer, "title": "t", "question": "q", "expect": {"verdict": "equal", "because": "b"}}
    for axes, words in (
        ({"fault": {"kind": "sigkill", "ranks": [1]}}, "1 is no rank of world 1; allowed: 0 to 0"),
        ({"launcher": "torchrun"}, "has all devices in one process; allowed: local"),
    ):
        with pytest.raises(ExperimentError, match=words):
            experiment.expand("e", {**document, "matrix": {**block, **axes}}, tmp_path)
    assert len(experiment.expand("e", {**document, "matrix": block}, tmp_path).cells) == 1
