"""For which faults a rank holds itself: it knows its number and its attempt, and whoever starts it may not."""

import json
import subprocess
import sys

import pytest

FAULTS = [
    {"id": "last", "point": "step", "step": 3, "attempt": 0, "ranks": "last"},
    {"id": "all", "point": "step", "step": 3, "attempt": 1, "ranks": "all"},
    {"id": "first", "point": "step", "step": 3, "attempt": 0, "ranks": [0]},
]


@pytest.mark.parametrize(
    ("rank", "attempt", "waits"), [(0, 0, ["first"]), (1, 0, ["last"]), (0, 1, ["all"]), (1, 1, ["all"]), (1, 2, [])]
)
def test_a_rank_waits_for_the_faults_of_its_own_number_and_attempt(tmp_path, rank, attempt, waits):
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TAKEBACK_RECORDS": str(tmp_path),
        "TAKEBACK_ARMED": json.dumps(FAULTS),
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    text = "from takeback import probe; probe.record('note'); print([fault['id'] for fault in probe._armed])"
    said = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(waits)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith(f"attempt{attempt}-rank{rank}-pid")
