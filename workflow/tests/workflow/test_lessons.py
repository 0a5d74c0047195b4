"""Every lesson for real: each fault, each experiment, each prediction."""

import re

import pandas as pd
import pytest
from flow import ROOT, Flow
from takeback import backends, environments, experiment

FILES = {file.stem: file for file in (ROOT / "experiments").glob("*.yaml")}
NAMES = sorted(
    file.stem for file in FILES.values()
    if file.stem != "kill_resume" and not file.stem.endswith("_long")
)  # fmt: skip


pytestmark = pytest.mark.timeout(5000)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All lessons in one call, and the folder of their results."""
    flow = Flow(tmp_path_factory.mktemp("lessons"), timeout=4800, cores=8)  # as the README calls them
    return flow.run("-k", "lessons", experiments=ROOT / "experiments"), flow.folder / "results"


def test_the_lessons_end_well(finished):
    process, _ = finished
    failed = re.findall(r"^Error in rule.*?(?=^\[)", process.stdout, re.DOTALL | re.MULTILINE)  # with its log
    assert process.returncode == 0, "\n".join(failed) or process.stdout[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_comes_out_as_predicted(finished, name):
    """Faults that need root or a device may read not-run, with the reason; none may surprise."""
    _, results = finished
    for own in {backends.get(leg.backend).ENVIRONMENT for leg in experiment.load(FILES[name]).legs.values()} - {None}:
        if not environments.is_there(own):
            pytest.skip(f"needs the environment {own}: python -m takeback environment {own}")
    judged = pd.read_parquet(results / name / "verdicts.parquet")
    surprises = judged[judged.surprise]
    assert surprises.empty, surprises[["cell", "verdict", "diagnosis"]].to_string()
    findings = pd.read_csv(results / name / "findings.tsv", sep="\t")
    assert set(findings.holds) <= {"yes", "not-run"}
    assert (results / name / "report.html").exists()
