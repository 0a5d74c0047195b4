"""A mistake in an experiment is one line that names file, key and what is allowed."""

import copy
from pathlib import Path

import pytest
import yaml
from takeback import document, experiment, launchers
from takeback.experiment import ExperimentError

GOOD = {
    "title": "t",
    "question": "q?",
    "trainer": {"name": "reference", "settings": {"steps": 24}},
    "matrix": {"backend": "gloo", "world": [1, 2], "kill_step": [2, 6]},
    "expect": {"verdict": "equal", "because": "all is restored"},
}


def write(folder, document):
    path = folder / "mine.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def changed(path, value):
    """GOOD with one value replaced; ``...`` removes the key."""
    document = copy.deepcopy(GOOD)
    *way, last = path
    at = document
    for key in way:
        at = at.setdefault(key, {})
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return document


def test_a_good_file_is_expanded(tmp_path):
    found = experiment.load(write(tmp_path, GOOD))
    assert [cell.id for cell in found.cells] == [
        "gloo-w1-k2-r1-sigkill",
        "gloo-w1-k6-r1-sigkill",
        "gloo-w2-k2-r2-sigkill",
        "gloo-w2-k6-r2-sigkill",
    ]


TORCHRUN = {"kind": "torchrun", "with": {"nproc": 1}}
MISTAKES = {
    "launcher": (("matrix", "launcher"), "pbs", ["launcher", "pbs", "hosts, local, slurm, torchrun"]),
    "launcher's helper": (
        ("matrix", "launcher"),
        "injector",
        ["launcher", "injector", "hosts, local, slurm, torchrun"],
    ),
    "launcher's parameter": (
        ("matrix", "launcher"),
        {"kind": "torchrun", "with": {"restarts": 1}},
        ["restarts", "no such", "max_restarts"],
    ),
    "launcher's choice": (("matrix", "launcher"), {"kind": "torchrun", "with": {"rdzv": "etcd"}}, ["rdzv", "static"]),
    "who can't restart": (("matrix", "resume_by"), "launcher", ["resume_by", "launcher", "leg"]),
    "ranks a node": (("matrix", "launcher"), {"kind": "torchrun", "with": {"nproc": 3}}, ["nproc", "3", "1 ranks"]),
    "a fault that hosts can't have": (
        ("matrix",),
        {"world": 1, "kill_step": 2, "launcher": "hosts", "fault": "oom"},
        ["fault", "oom", "sigkill, sigterm"],
    ),
    "no rank on a host": (("matrix", "launcher"), {"kind": "hosts", "with": {"nproc": 0}}, ["nproc", "at least 1"]),
    "an option in place of a variable": (
        ("matrix", "launcher"),
        {"kind": "hosts", "environment": {"-S touch": "x"}},
        ["launcher"],
    ),
    "attempt": (("matrix", "fault"), {"kind": "sigkill", "attempt": 1}, ["attempt", "local never", "allowed: 0"]),
    "nodes": (("matrix", "fault"), {"kind": "sigkill", "nodes": [0]}, ["nodes", "local has none"]),
    "a fault of nodes": (("matrix", "fault"), "node_arrives", ["node_arrives needs", "nodes", "local"]),
    "a fault of schedulers": (("matrix", "fault"), "slurm_requeue", ["strikes all"]),
    "a scheduler": (("matrix", "fault"), {"kind": "slurm_requeue", "ranks": "all"}, ["needs", "scheduler", "local"]),
    "a node that is not there": (
        ("matrix",),
        {"world": 2, "kill_step": 2, "launcher": TORCHRUN, "fault": {"kind": "sigkill", "nodes": [2]}},
        ["nodes: 2 is no", "one of 2 nodes", "0 to 1"],
    ),
    "lives of a launcher": (
        ("matrix",),
        {"world": 1, "kill_step": 2, "launcher": TORCHRUN, "then": [{"kill_step": 4}]},
        ["then", "attempt"],
    ),
    "unknown key": (("wrold",), 1, ["wrold", "allowed", "matrix"]),
    "unknown axis": (("matrix", "wrold"), 1, ["matrix", "wrold", "resume_world"]),
    "missing key": (("question",), ..., ["question", "missing"]),
    "wrong type": (("matrix", "world"), "two", ["matrix.world", "two", "number of ranks"]),
    "empty list": (("matrix", "world"), [], ["matrix.world"]),
    "kill step outside the run": (("matrix", "kill_step"), 25, ["kill_step", "25", "1 to 24"]),
    "kill step zero": (("matrix", "kill_step"), 0, ["kill_step", "0"]),
    "no kill step": (("matrix", "kill_step"), ..., ["kill_step"]),
    "world does not divide": (("matrix", "world"), 3, ["world", "3", "8 shards", "1, 2, 4, 8"]),
    "resume world does not divide": (("matrix", "resume_world"), 5, ["resume_world", "5"]),
    "unknown backend": (("matrix", "backend"), "mpi", ["backend", "mpi", "gloo, nccl"]),
    "unknown fault": (("matrix", "fault"), "sigkil", ["fault", "sigkil", "sigkill"]),
    "a parameter of no choice": (
        ("matrix", "fault"),
        {"kind": "corrupt", "with": {"how": "flip"}},
        ["fault.with.how", "flip", "flip_bit, truncate"],
    ),
    "a power loss of one rank": (("matrix", "fault"), "power_loss", ["fault.ranks", "power_loss", "all"]),
    "fault on no rank": (("matrix", "fault"), {"kind": "sigkill", "ranks": [1]}, ["fault.ranks", "1", "world 1"]),
    "unknown point": (("matrix", "point"), "stepp", ["point", "stepp", "step_begin"]),
    "unknown setting": (("trainer", "settings", "stepz"), 1, ["trainer.settings", "stepz", "steps"]),
    "setting out of range": (("trainer", "settings", "dropout"), 1.5, ["dropout", "1.5"]),
    "setting of no choice": (("matrix", "trainer"), {"loader": "fast"}, ["loader", "fast", "inline, workers"]),
    "unknown figure": (("figures",), ["pie"], ["figures", "pie", "detection"]),
    "no time to notice": (("notice",), 0, ["notice"]),
    "unknown verdict": (("expect", "verdict"), "fine", ["verdict", "fine", "equal"]),
    "duplicate cell": (("include",), [{"kill_step": 2}], ["gloo-w1-k2-r1-sigkill", "2 times"]),
    "everything excluded": (("exclude",), [{"backend": "gloo"}], ["no cell", "exclude"]),
    "claim without a cell": (("claims",), [{"claim": "c", "where": {"world": 4}}], ["claims.0"]),
    "a prediction inside the matrix": (("matrix", "expect"), {"verdict": "equal"}, ["matrix", "expect", "kill_step"]),
    "an excluded name": (("exclude",), [{"name": "x"}], ["exclude.0", "name"]),
    "unknown key of a control": (("controls",), [{"nmae": "x"}], ["controls.0"]),
    "an endless deadline": (("deadline",), float("inf"), ["deadline"]),
    "a rank twice": (("matrix", "fault"), {"kind": "sigkill", "ranks": [0, 0]}, ["fault"]),
    "a point that the victim does not pass": (("matrix", "point"), "save.commit", ["point", "rank 0", "all"]),
    "no such source": (
        ("trainer",),
        {"command": ["t", "{checkpoints}"], "sources": ["gone/*.py"]},
        ["sources", "gone"],
    ),
    "no folder for checkpoints": (("trainer",), {"command": ["train"]}, ["trainer.command", "{checkpoints}"]),
    "a whole number as a float": (("matrix", "world"), 2.0, ["matrix.world", "2.0"]),
    "other outside of a where": (("matrix", "resume_world"), "other", ["resume_world", "other"]),
    "heads that do not divide": (("matrix", "trainer"), {"heads": 5}, ["heads", "5", "32"]),
    "a handover of no form": (("matrix", "trainer"), {"handover": "9"}, ["handover", "9"]),
    "too few samples": (("matrix", "trainer"), {"samples": 4}, ["samples", "4", "16"]),
    "buckets without their wrapper": (
        ("matrix", "trainer"),
        {"reduction": "buckets", "strategy": "fsdp"},
        ["matrix.world", "reduction: buckets", "DistributedDataParallel", "fsdp"],
    ),
    "a resume without the wrapper": (
        ("matrix",),
        {"world": 1, "kill_step": 2, "trainer": {"reduction": "buckets"}, "resume_trainer": {"strategy": "single"}},
        ["matrix.resume_world", "reduction: buckets", "single"],
    ),
    "a position in a directory": (
        ("matrix", "trainer"),
        {"optimizer_by": "position", "format": "dcp"},
        ["optimizer_by: position", "one file", "dcp"],
    ),
    "lives without a control": (
        ("matrix",),
        {
            "world": 2,
            "resume_world": 1,
            "kill_step": 6,
            "then": [{"kill_step": 7}],
            "trainer": {"reduction": "buckets"},
        },
        ["matrix.then", "handover control"],
    ),
    "no such script": (
        ("trainer",),
        {"command": ["python", "gone.py", "{checkpoints}"]},
        ["trainer.command", "gone.py"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_file_key_and_what_is_allowed(tmp_path, mistake):
    path, value, words = MISTAKES[mistake]
    with pytest.raises(ExperimentError) as caught:
        experiment.load(write(tmp_path, changed(path, value)))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    for word in ["mine.yaml", *words]:
        assert word in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"fault": [[{"kind": "sigkill", "ranks": "all"}, {"kind": "corrupt", "point": "end"}]]},
            "corrupt strikes files",
        ),
        ({"fault": {"kind": "power_loss", "ranks": "all"}}, "power_loss strikes files"),
        ({"then": [{"kill_step": 8, "fault": {"kind": "disk_full"}}]}, "disk_full strikes files"),
        ({"trainer": {"write": "rename"}}, "trainer.write: rename is a way to write to a folder"),
    ],
)
def test_on_an_object_store_no_fault_strikes_files(tmp_path, change, words):
    on_objects = changed(("trainer", "store"), "object")
    assert {cell.resumed.trainer["store"] for cell in experiment.load(write(tmp_path, on_objects)).cells} == {"object"}
    folder = {**GOOD, "matrix": {**GOOD["matrix"], **change}}
    assert "store" not in experiment.load(write(tmp_path, folder)).cells[0].resumed.trainer
    with pytest.raises(ExperimentError, match=words):
        experiment.load(write(tmp_path, {**on_objects, "matrix": {**GOOD["matrix"], **change}}))


@pytest.mark.parametrize(
    "text", ["a: [1", "a: 1\na: 2", "- 1", "", "title: \x00", "title: 2020-99-99", "[" * 3000, "1: a\nfoo: b"]
)
def test_a_file_that_is_no_experiment_is_refused_in_one_line(tmp_path, text):
    with pytest.raises(ExperimentError) as caught:
        experiment.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "mine.yaml" in str(caught.value)


@pytest.mark.parametrize("name", ["leg", "runs", "all", "1st", "with space"])
def test_a_name_that_is_taken_or_no_name_is_refused(tmp_path, name):
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    with pytest.raises(ExperimentError, match="name of an experiment"):
        experiment.load(path)


def test_an_edited_helper_of_somebody_elses_trainer_makes_another_leg(tmp_path):
    for name in ("train.py", "helper.py", "deep/model.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    document = changed(("trainer",), {"command": ["python", "train.py", "{checkpoints}"], "sources": ["deep/*.py"]})
    path = write(tmp_path, document)

    def leg():
        return experiment.load(path, tmp_path).cells[0].reference.id

    seen = {leg()}
    for name in ("train.py", "helper.py", "deep/model.py"):
        (tmp_path / name).write_text("2")
        seen.add(leg())
    assert len(seen) == 4


@pytest.mark.parametrize("where", ["train.py", "./train.py", "../elsewhere/train.py", "{folder}/elsewhere/train.py"])
def test_a_script_may_be_named_by_any_path_that_leads_to_it(tmp_path, where):
    for folder in ("here", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text("1")
    command = ["python", where.format(folder=tmp_path), "{checkpoints}"]
    path = write(tmp_path, changed(("trainer",), {"command": command}))
    before = experiment.load(path, tmp_path / "here").cells[0].reference
    assert before.trainer["command"] == command
    for folder in ("here", "elsewhere"):
        (tmp_path / folder / "train.py").write_text("2")
    assert experiment.load(path, tmp_path / "here").cells[0].reference.id != before.id


def test_a_missing_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(ExperimentError, match="cannot be read"):
        experiment.load(tmp_path / "none.yaml")


def test_every_key_of_the_schemas_has_a_description():
    for name in ("experiment", "reference-trainer"):
        described = 0
        for key, entry in document.schema(name)["properties"].items():
            assert entry.get("description"), key
            described += 1
        assert described > 5


def test_the_page_on_experiments_lists_every_key():
    page = (experiment.ROOT / "experiments/README.md").read_text()
    schema = document.schema("experiment")
    keys = [
        *schema["properties"],
        *schema["$defs"]["axes"]["properties"],
        "name",
        *schema["$defs"]["expectation"]["properties"],
    ]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_a_machine_of_several_needs_devices_for_its_own_ranks_alone():
    spec = {"world": 8, "launcher": {"kind": "hosts", "with": {"nproc": 4}}}
    assert [launchers.ranks_here(one) for one in (spec, {**spec, "launcher": "local"}, {**spec, "world": 2})] == [
        4,
        8,
        2,
    ]


def test_every_experiment_of_the_repository_is_valid():
    files = sorted((experiment.ROOT / "experiments").glob("*.yaml"))
    assert Path("kill_resume") in [Path(file.stem) for file in files]
    for file in files:
        experiment.load(file)


def test_where_times_are_asked_for_struck_and_resumed_runs_run_alone(tmp_path):
    asked = experiment.load(write(tmp_path, changed(("alone",), True)))
    assert asked.timed == {leg.id for cell in asked.cells for leg in (cell.killed, cell.resumed)}
    assert asked.timed < asked.legs.keys()
    assert experiment.load(write(tmp_path, GOOD)).timed == set()


def test_only_struck_runs_have_a_time_to_notice_so_that_references_are_shared(tmp_path):
    asked = experiment.load(write(tmp_path, changed(("notice",), 5)))
    plain = experiment.load(write(tmp_path, GOOD))
    for with_notice, without in zip(asked.cells, plain.cells, strict=True):
        assert with_notice.reference.id == without.reference.id
        assert with_notice.killed.id != without.killed.id
        assert with_notice.killed.spec["notice"] == 5
        assert "notice" not in with_notice.resumed.spec
