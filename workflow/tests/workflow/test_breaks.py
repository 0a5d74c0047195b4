"""Each guard of the package is broken on purpose, in a copy, and the test that should see it must go red."""

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


@pytest.mark.parametrize("broken", BREAKS, ids=[f"{b['file']}-{n}" for n, b in enumerate(BREAKS)])
def test_a_broken_guard_is_seen(copy, broken):
    path = copy / "workflow/takeback" / broken["file"]
    whole = path.read_text()
    assert whole.count(broken["old"]) == 1, f"{broken['old']!r} must stand once in {broken['file']}"
    path.write_text(whole.replace(broken["old"], broken["new"]))
    try:
        tests = [f"workflow/tests/{test}" for test in broken["tests"]]
        finished = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=60", *tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "workflow"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(whole)
    assert finished.returncode == 1, f"{broken} went unseen:\n{finished.stdout[-2000:]}"
