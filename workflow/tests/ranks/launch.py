"""Runs one leg in a process of its own, as the workflow does, and reads what it left."""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
from takeback.leg import Leg

ROOT = Path(__file__).parents[3]
#: Whether the kernel tells how a process ended also after its parent has reaped it (linux/pidfd.h, PIDFD_INFO_EXIT).
TELLS_AFTERWARDS = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 15)
FOREIGN = "workflow/tests/data/foreign.py"


def command_of(leg, runs, *more):
    return [
        sys.executable,
        "-m",
        "takeback",
        "leg",
        str(runs / leg.id),
        "--spec",
        leg.spec_json,
        "--root",
        str(ROOT),
        *more,
    ]


def run(leg, runs, timeout=120):
    """The finished process of one leg; its evidence is in ``runs``."""
    return subprocess.run(command_of(leg, runs), capture_output=True, text=True, timeout=timeout, check=False)


def script(tmp_path, text, world=2, **more):
    """A leg that runs ``text`` as a training script."""
    path = tmp_path / "script.py"
    path.write_text(text)
    return Leg({"command": ["python", str(path), "{checkpoints}"], "settings": {}}, "gloo", world, **more)


def fault(step, ranks="last", point="step"):
    return {"id": "0", "kind": "sigkill", "ranks": ranks, "point": point, "step": step, "attempt": 0}


def events(leg, runs, kind=None):
    """Events of a leg, with the fields of ``detail`` as further columns; of one kind, if given."""
    found = pd.read_parquet(runs / leg.id / "events.parquet")
    details = pd.DataFrame([json.loads(text) for text in found.detail], index=found.index)
    found = pd.concat([found, details], axis=1)
    return found if kind is None else found[found.kind == kind]


def losses(leg, runs):
    return pd.read_parquet(runs / leg.id / "losses.parquet")


def wait_for(condition, seconds):
    """What ``condition`` returns once it is true; fails if it is not in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)
    return found
