"""What a provenance states: facts of a leg, what legs share, the comparisons made, differences."""

import json

import pandas as pd
import pytest
import synthetic
import synthetic_legs
from takeback import machine, provenance, sources
from takeback.answer import answer

SPEC = {"trainer": {"settings": {"seed": 7}}, "backend": "gloo", "world": 2, "hardware": {"threads": 1}}


@pytest.fixture(autouse=True)
def no_torch(monkeypatch):
    monkeypatch.setattr(machine, "_capability", lambda: "X")


def test_the_id_of_a_leg_changes_with_any_fact_and_with_nothing_else():
    one, same = (machine.of_leg(SPEC, {"dtype": "float32"}, {"OMP_NUM_THREADS": "1"}) for _ in range(2))
    other = machine.of_leg(SPEC, {"dtype": "float64"}, {"OMP_NUM_THREADS": "1"})
    assert one["id"] == same["id"] != other["id"]


def test_server_and_client_are_named_where_checkpoints_are_objects():
    on_objects = {**SPEC, "trainer": {**SPEC["trainer"], "store": "object"}}
    pytest.importorskip("swift", reason="no object server is installed")
    assert {"swift", "s3fs"} <= machine.of_leg(on_objects, {}, {})["software"].keys()
    assert not {"swift", "s3fs"} & machine.of_leg(SPEC, {}, {})["software"].keys()


def test_threads_and_kernels_of_all_ranks_as_they_found_them_are_in_the_fingerprint():
    asked = {"OMP_NUM_THREADS": "3", "ATEN_CPU_CAPABILITY": "avx2"}
    measured = [{"kernels": "DEFAULT", "threads": 3}, {"kernels": "AVX2", "threads": 3}]
    fingerprint = machine.of_leg(SPEC, {}, asked, measured)["fingerprint"]
    assert (fingerprint["threads"], fingerprint["cpu_capability"]) == ("3", "AVX2 and DEFAULT")
    assert machine.of_leg(SPEC, {}, asked)["fingerprint"]["cpu_capability"] == "X", "not what was asked for"


def test_kernels_that_a_processor_lacks_the_instructions_for_are_named(monkeypatch):
    monkeypatch.setattr(machine, "cpu", lambda: ("Example CPU", "avx avx2 fma"))
    assert (machine.lacks("default"), machine.lacks("avx2")) == (None, None)
    assert machine.lacks("avx512") == "this processor has no avx512bw, avx512dq, avx512vl, which avx512 kernels need"


def test_what_runs_had_before_and_after_the_fault_is_stated_with_its_cells():
    asked = synthetic.experiment(controls=False)
    frame = synthetic.verdicts(asked)
    frame.loc[0, "resumed_on"] = "AVX2 kernels, 2 threads"
    stated = provenance.of_experiment(asked, frame, [])["hardware"]
    assert stated["run on AVX512 kernels, 1 thread, resumed on AVX2 kernels, 2 threads"] == "1 cell"
    assert len(stated) == 2
    assert "on other hardware (AVX512 kernels, 1 thread → AVX2 kernels, 2 threads)" in answer(frame).sentence


def test_variables_that_change_kernels_are_recorded_and_others_are_not():
    flags = machine.of_leg(SPEC, {}, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HOME": "/x", "TOKEN": "y"})["flags"]
    assert flags == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def test_legs_with_another_fingerprint_are_named_in_the_experiment():
    asked = synthetic.experiment()
    frame = synthetic.verdicts(asked)
    leg = asked.cells[0].reference
    legs = [synthetic_legs.provenance(leg), synthetic_legs.provenance(leg, cpu_capability="AVX2"), {}]
    found = provenance.of_experiment(asked, frame, legs)
    assert found["fingerprints"] == "the runs DIFFER in cpu_capability"
    assert found["fingerprint"]["cpu_capability"] == "AVX2 | AVX512"
    assert found["experiment"]["legs that ran"] == 2


def compared(*texts, **columns):
    """Verdicts with these comparisons; all else as in a cell that compared everything and came out equal."""
    usual = {"control": None, "diagnosis": "equal", "steps_compared": 8, "states_compared": 9, "samples_equal": True}
    return pd.DataFrame({"comparison": texts} | {name: columns.get(name, value) for name, value in usual.items()})


def test_clauses_that_differ_in_numbers_alone_become_one_with_its_cells_counted():
    sides = "same topology, gloo: resumed leg (world {0}) against the uninterrupted reference (world {0}): "
    one = sides.format(1) + "losses of steps 5-24 as float32 bits"
    four = sides.format(4) + "losses of steps 17-24 as float32 bits; 1 state digest by name"
    made, nothing = provenance.comparisons(compared(one, "nothing was compared", None, four))
    assert made["cells"] == 2
    losses, states = made["parts"]
    assert losses == {"cells": 2, "comparison": "losses of steps 5-24 or 17-24 as float32 bits"}
    assert states["cells"] == 1
    assert (nothing["cells"], nothing["parts"]) == (2, [])


def test_the_comparison_of_a_kind_is_said_in_words_from_what_was_compared():
    sides = "same topology, gloo: resumed leg (world {0}) against the uninterrupted reference (world {0}): "
    clauses = "losses of steps 17-24 as float32 bits, rank by rank; twin with reference (24 losses)"
    frame = compared(*(sides.format(world) + clauses for world in (1, 4)), control=[None, "rng not restored"])
    (whole,) = provenance.comparisons(frame)
    assert whole["words"] == (
        "Same topology on gloo, 2 cells, 1 of them a negative control: the run resumed at world 1 or 4 was compared "
        "with the uninterrupted run at the same world: 16 losses as float32 bits, 18 state digests by name and the "
        "samples of every step. Before that, two uninterrupted runs were compared with each other."
    )
    (less,) = provenance.comparisons(frame.assign(states_compared=[9, 0], samples_equal=None))
    assert "16 losses as float32 bits and 9 state digests by name (in 1 cell)." in less["words"]
    assert "samples" not in less["words"]


def test_where_nothing_was_compared_the_reason_is_said():
    frame = compared("nothing was compared", diagnosis="not run: no CUDA device")
    assert provenance.comparisons(frame)[0]["words"] == "In 1 cell nothing was compared: no CUDA device."


def test_singular_and_plural_of_one_comparison_are_the_same_comparison():
    (made,) = provenance.comparisons(compared("a: b: receipts of 1 rank", "a: b: receipts of 1,024 ranks"))
    assert made["parts"] == [{"cells": 2, "comparison": "receipts of 1 or 1,024 ranks"}]


def test_many_values_are_given_as_a_range():
    frame = compared(*(f"a: b: {n} losses" for n in (9, 10, 11, 12, 13, 14)))
    assert provenance.comparisons(frame)[0]["parts"][0]["comparison"] == "9 … 14 losses"


def test_a_bridge_that_no_rank_told_is_said_to_be_not_told():
    told = {"bridge": {"backend": "nccl", "version": "2.27"}}
    assert machine.of_leg(SPEC, told, {})["fingerprint"]["bridge"] == "nccl, 2.27"
    for backend in ("gloo", "nccl"):
        found = machine.of_leg(SPEC | {"backend": backend}, {}, {})["fingerprint"]["bridge"]
        assert found == f"{backend} (not told by the trainer)"


def test_rewording_the_provenance_of_the_page_is_no_reason_to_train_again():
    behind = {path.name for role in ("trainer", "nemesis") for path in sources.files(role)}
    assert "machine.py" in behind
    assert not behind & {"provenance.py", "sheet.py"}
    assert "provenance" not in vars(machine)


def test_a_provenance_written_twice_has_the_same_bytes(tmp_path):
    asked = synthetic.experiment()
    frame = synthetic.verdicts(asked)
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        legs = [synthetic_legs.provenance(cell.resumed) for cell in asked.cells]
        provenance.write(provenance.of_experiment(asked, frame, legs), tmp_path / name)
        written.append([(tmp_path / name / f"provenance.{kind}").read_bytes() for kind in ("json", "tsv")])
    assert written[0] == written[1]
    assert pd.read_csv(tmp_path / "a/provenance.tsv", sep="\t").columns.tolist() == ["section", "key", "value"]


def test_diff_names_each_key_that_differs_and_exits_with_1(tmp_path):
    leg = synthetic.experiment().cells[0].reference
    for name, capability in (("a", "AVX2"), ("b", "AVX512")):
        (tmp_path / name).write_text(json.dumps(synthetic_legs.provenance(leg, cpu_capability=capability)))
    text, status = provenance.diff_files(tmp_path / "a", tmp_path / "b")
    assert status == 1
    assert "fingerprint.cpu_capability\n  - AVX2\n  + AVX512" in text
    assert provenance.diff_files(tmp_path / "a", tmp_path / "a")[1] == 0


def test_kernels_that_a_processor_lacks_are_named(monkeypatch):
    monkeypatch.setattr(machine, "cpu", lambda: ("a processor", "fma avx2 avx512bw"))
    assert machine.lacks("avx2") is None
    assert machine.lacks("avx512") == "this processor has no avx512dq, avx512vl, which avx512 kernels need"
