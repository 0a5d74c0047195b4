"""Each guard of the package is broken on purpose, in a copy, and the test that should see it must go red."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parents[1]
BREAKS = yaml.safe_load((TESTS / "breaks.yaml").read_text())


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository without its history and results."""
    folder = tmp_path_factory.mktemp("broken")
    for name in ("Snakefile", ".pytest.ini", "workflow", "experiments"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "reference", "*.egg-info")
            )
        else:
            shutil.copyfile(source, folder / name)
    return folder


@pytest.fixture(scope="module")
def environment(copy):
    return {**os.environ, "PYTHONPATH": str(copy / "workflow"), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def in_a_fork(copy, environment):
    """Run tests in a fork of a process that has everything imported; (exit status, output)."""
    command = [sys.executable, str(Path(__file__).with_name("breaker.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=copy, env=environment, **pipes) as breaker:

        def run(tests):
            print(json.dumps(tests), file=breaker.stdin, flush=True)
            return json.loads(breaker.stdout.readline())

        yield run
        breaker.stdin.close()


@pytest.fixture
def afresh(copy, environment):
    """Run tests as anybody would: those that start processes of their own must not be forks of one that has not."""

    def run(tests):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=60", *tests]
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout

    return run


@pytest.mark.parametrize("broken", BREAKS, ids=[f"{b['file']}-{n}" for n, b in enumerate(BREAKS)])
def test_a_broken_guard_is_seen(copy, in_a_fork, afresh, broken):
    path = copy / "workflow/takeback" / broken["file"]
    whole = path.read_text()
    assert whole.count(broken["old"]) == 1, f"{broken['old']!r} must stand once in {broken['file']}"
    path.write_text(whole.replace(broken["old"], broken["new"]))
    quick = all(test.startswith("unit/") for test in broken["tests"])
    try:
        status, output = (in_a_fork if quick else afresh)([f"workflow/tests/{test}" for test in broken["tests"]])
    finally:
        path.write_text(whole)
    assert status == 1, f"{broken} went unseen:\n{output[-2000:]}"
