"""Style of the sources, and which edit re-runs what."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flow import ROOT, SMALL, Flow
from takeback import sources

PLAIN = {**SMALL, "include": [], "controls": [], "claims": [], "matrix": {**SMALL["matrix"], "resume_world": 2}}


def call(*words):
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_ruff_has_nothing_to_say():
    config = ["--config", "workflow/pyproject.toml"]
    for words in (["check", *config, "workflow"], ["format", "--check", *config, "workflow"]):
        done = call("ruff", *words)
        assert done.returncode == 0, done.stdout


def test_snakefmt_has_nothing_to_say():
    done = call("snakefmt", "--check", "Snakefile", "workflow/rules")
    assert done.returncode == 0, done.stderr


def test_snakemakes_lint_asks_for_nothing_but_conda_or_containers():
    done = call("snakemake", "--lint")
    found = set(re.findall(r"^    \* (.*)$", done.stdout + done.stderr, re.M))
    assert found == {"Specify a conda environment or container for each rule.:"}


def test_no_module_outgrows_a_head():
    for path in sources.PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, path
    for path in (ROOT / "workflow/rules").glob("*.smk"):
        assert len(path.read_text().splitlines()) <= 120, path


JUDGES = ("checkers", "figures", "bits", "verdicts", "summary", "report", "answer", "compare", "provenance")
BREAKERS = ("faults", "launchers", "network", "cgroup", "trainers", "backends", "leg_job", "pool", "pool_client")


def test_judges_and_breakers_do_not_know_each_other():
    def imported(name):
        path = sources.PACKAGE / name
        files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        text = "\n".join(file.read_text() for file in files)
        return set(re.findall(r"^\s*from takeback\.(\w+)", text, re.M)) | {
            word.strip()
            for line in re.findall(r"^\s*from takeback import (.*)$", text, re.M)
            for word in line.split(",")
        }

    facts = {"provenance"}  # of a leg: evidence, which its run writes
    for name in JUDGES:
        assert not imported(name) & set(BREAKERS), name
    for name in BREAKERS:
        assert not imported(name) & set(JUDGES) - facts, name


def test_the_probe_imports_the_standard_library_alone():
    text = (sources.PACKAGE / "probe.py").read_text()
    names = set(re.findall(r"^(?:import|from) (\w+)", text, re.M)) - {"__future__"}
    assert names <= set(sys.stdlib_module_names)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A finished run of a copy of the repository, whose sources may be edited."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "workflow", root / "workflow", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copyfile(ROOT / "Snakefile", root / "Snakefile")
    flow = Flow(tmp_path_factory.mktemp("run"), root, small=PLAIN)
    flow.call = flow.run("small", "--verbose")
    assert flow.call.returncode == 0
    return flow


def test_snakemake_looks_for_work_when_a_job_has_ended_and_not_all_the_time(copied):
    looks, ended = (copied.call.stdout.count(words) for words in ("Ready jobs: ", "Finished jobid: "))
    assert 0 < looks <= ended + 1


@pytest.mark.parametrize(
    ("file", "again", "spared"),
    [
        ("figures/style.py", {"page"}, {"leg", "verdicts"}),
        ("checkers/losses.py", {"verdicts", "page"}, {"leg"}),
        ("trainers/model.py", {"leg"}, set()),
        ("faults/sigkill.py", {"leg"}, set()),
    ],
)
def test_an_edit_runs_again_what_it_touches_and_says_why(copied, file, again, spared):
    path = Path(copied.root) / "workflow/takeback" / file
    whole = path.read_text()
    path.write_text(whole + "\n# edited\n")
    try:
        told = copied.run("small", "--dry-run").stdout
    finally:
        path.write_text(whole)
    rules = set(re.findall(r"^([a-z]+) +\d+$", told, re.M))
    assert again <= rules, told
    assert not spared & rules, told
    assert re.search(r"[Pp]arams have changed", told)
