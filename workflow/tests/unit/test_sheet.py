"""The half page of facts: what a reader asks first stands there, and the rest is not lost."""

import synthetic
import synthetic_legs
from takeback import provenance
from takeback.sheet import rest, sheet


def found(**facts):
    asked = synthetic.experiment(controls=False)
    leg = synthetic_legs.provenance(asked.cells[0].reference)
    leg["trainer"]["facts"] = facts
    return provenance.of_experiment(asked, synthetic.verdicts(asked), [leg])


def test_shapes_are_the_micro_batch_and_the_number_of_parameters():
    layers = {f"layers.{n}": [32, 32] for n in range(40)}
    stated = found(shapes={"micro_batch": [2, 32], **layers}, parameters=42880)
    assert dict(sheet(stated))["shapes"] == "micro-batch 2 x 32, 42,880 parameters"
    assert "layers.39 32 x 32" in dict(rest(stated))["trainer.facts.shapes"]


def test_few_shapes_are_all_there():
    assert dict(sheet(found(shapes={"images": [8, 3], "labels": [8]})))["shapes"] == "images 8 x 3, labels 8"


def test_what_a_trainer_did_not_tell_is_said_to_be_not_told():
    lines = dict(sheet(found()))
    assert [lines[name] for name in ("dtype", "shapes", "dataset")] == ["not told"] * 3
    assert lines["bridge"] == "not told"
    assert lines["chip"].startswith("Example CPU @ 2.1 GHz, AVX512 kernels, 1 thread a rank")


def test_the_half_page_has_a_line_for_each_thing_that_was_promised():
    names = [name for name, _ in sheet(found())]
    assert names == [
        "chip",
        "hardware",
        "dtype",
        "shapes",
        "bridge",
        "versions",
        "source",
        "seeds",
        "dataset",
        "experiment",
    ]
