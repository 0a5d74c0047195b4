"""Each guard of the package is broken on purpose, in a copy, and the test that should see it must go red."""

import json
import os
import queue
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import breaker
import pytest
import yaml

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parents[1]
BREAKS = yaml.safe_load((TESTS / "breaks.yaml").read_text())


class Place:
    """A copy of the repository to break, and the ways to run its tests; one break at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Snakefile", ".pytest.ini", "workflow", "experiments"):
            source = ROOT / name
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "reference", "*.egg-info")
                shutil.copytree(source, folder / name, ignore=ignore)
            else:
                shutil.copyfile(source, folder / name)
        self.environment = {**os.environ, "PYTHONPATH": str(folder / "workflow"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(Path(__file__).with_name("breaker.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.breaker = subprocess.Popen(command, cwd=folder, env=self.environment, **pipes)

    def outcome(self, broken):
        """(exit status, output) of the tests that should see a break."""
        path = self.folder / "workflow/takeback" / broken["file"]
        whole = path.read_text()
        assert whole.count(broken["old"]) == 1, f"{broken['old']!r} must stand once in {broken['file']}"
        path.write_text(whole.replace(broken["old"], broken["new"]))
        quick = all(test.startswith(("unit/", "page/")) for test in broken["tests"])
        try:
            return (self.in_a_fork if quick else self.afresh)([f"workflow/tests/{test}" for test in broken["tests"]])
        finally:
            path.write_text(whole)

    def in_a_fork(self, tests):
        """In a fork of a process that has everything imported."""
        print(json.dumps(tests), file=self.breaker.stdin, flush=True)
        return json.loads(self.breaker.stdout.readline())

    def afresh(self, tests):
        """As anybody would: tests that start processes of their own must not be forks of one that has not."""
        command = [sys.executable, "-m", "pytest", *breaker.OPTIONS, *tests]
        ended = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )
        return ended.returncode, ended.stdout

    def close(self):
        self.breaker.stdin.close()
        self.breaker.wait()


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """Of each break that was asked for by its number: a future of its outcome. Most of them wait for imports of one
    process after the other, so that two at once take half of the time.
    """
    asked = [item.callspec.params["number"] for item in request.session.items if item.module is request.module]
    places = queue.SimpleQueue()
    for _ in range(2):
        places.put(Place(tmp_path_factory.mktemp("broken")))

    def outcome(broken):
        place = places.get()
        try:
            return place.outcome(broken)
        finally:
            places.put(place)

    with ThreadPoolExecutor(2) as both:
        yield {number: both.submit(outcome, BREAKS[number]) for number in asked}
        both.shutdown(cancel_futures=True)
    for _ in range(2):
        places.get().close()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(len(BREAKS)), ids=[f"{b['file']}-{n}" for n, b in enumerate(BREAKS)])
def test_a_broken_guard_is_seen(outcomes, number):
    status, output = outcomes[number].result()
    seen = status == 1 and re.search("^FAILED ", output, re.M)  # an ERROR is of what surrounds the test
    assert seen, f"{BREAKS[number]} went unseen:\n{output[-2000:]}"
