"""What an experiment may set is what the reference trainer takes."""

import dataclasses

from takeback import document, experiment
from takeback.trainers.settings import Settings


def test_the_schema_of_the_reference_trainer_is_its_settings():
    known = document.schema("reference-trainer")["properties"]
    own = {field.name: field for field in dataclasses.fields(Settings) if field.name not in ("checkpoints", "backend")}
    assert list(known) == list(own)
    for name, field in own.items():
        assert known[name]["default"] == field.default, name
        assert tuple(known[name].get("enum", ())) == field.metadata.get("allowed", ()), name


def test_the_points_of_the_schema_are_those_of_the_sources():
    import re

    folder = experiment.ROOT / "workflow/takeback"
    text = "".join(path.read_text() for path in [*(folder / "trainers").rglob("*.py"), folder / "probe.py"])
    points = set(re.findall(r"(?:probe\.| )point(?:\(|, )\"([a-z_.]+)\"", text))
    assert set(document.schema("reference-trainer")["x-points"]) == points
