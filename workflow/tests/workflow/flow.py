"""Runs Snakemake on small experiments in a folder of its own, as a user would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]

SMALL = {
    "title": "Small",
    "question": "Is it still the same run?",
    "trainer": {"name": "reference", "settings": {"steps": 8, "samples": 64, "save_every": 2}},
    "matrix": {"backend": "gloo", "world": 2, "resume_world": [1, 2], "kill_step": 6},
    "expect": {"verdict": "equal", "because": "all is restored"},
    "include": [{"backend": "nccl", "world": 1, "resume_world": 1}],
    "controls": [
        {
            "name": "optimizer dropped",
            "resume_world": 2,
            "resume_trainer": {"forget": "optimizer"},
            "expect": {
                "verdict": "different",
                "first_step": 5,
                "first_state": "optimizer.*",
                "because": "empty moments",
            },
        }
    ],
    "claims": [
        {"claim": "The run survives.", "where": {"backend": "gloo"}},
        {"claim": "The broken trainer is caught.", "control": "*"},
    ],
}
WRONG = {
    **SMALL,
    "title": "Wrong prediction",
    "include": [],
    "controls": [],
    "claims": [],
    "matrix": {**SMALL["matrix"], "resume_world": 2},
    "expect": {"verdict": "different", "because": "for the test"},
}
FOREIGN = {
    "title": "Somebody else's trainer",
    "question": "Is it still the same run?",
    "trainer": {"command": ["python", "workflow/tests/data/foreign.py", "{checkpoints}"]},
    "matrix": {"backend": "gloo", "world": 2, "kill_step": 6},
    "expect": {"verdict": "equal", "because": "model, optimizer and step are all there is"},
}


class Flow:
    """A working directory with experiments, and the ways to call Snakemake there."""

    def __init__(
        self, folder: Path, root: Path = ROOT, timeout: float = 280, cores: int = 4, **experiments: dict
    ) -> None:
        self.folder, self.root, self.timeout, self.cores = folder, root, timeout, cores
        (folder / "experiments").mkdir(parents=True, exist_ok=True)
        for name, document in experiments.items():
            self.write(name, document)

    def write(self, name: str, document: dict) -> None:
        (self.folder / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def words(self, *targets: str, **config: object) -> list[str]:
        config = {"experiments": self.folder / "experiments", **config}
        return [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(self.root / "Snakefile")),
            *("--directory", str(self.folder), "--cores", str(self.cores), "--show-failed-logs", *targets),
            *("--config", *(f"{key}={value}" for key, value in config.items())),
        ]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.root / "workflow")}

    def run(self, *targets: str, **config: object) -> subprocess.CompletedProcess:
        """One call to its end; stdout and stderr together in ``stdout``."""
        return subprocess.run(
            self.words(*targets, **config),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            timeout=self.timeout,
            check=False,
        )

    def start(self, *targets: str, **config: object) -> subprocess.Popen:
        """A call of its own process group, as at a terminal; its output goes to ``out.txt``."""
        with (self.folder / "out.txt").open("ab") as out:
            as_at_a_terminal = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background it is ignored
            return subprocess.Popen(
                self.words(*targets, **config), stdout=out, stderr=out, env=self.environment, start_new_session=True,
                preexec_fn=as_at_a_terminal,
            )  # fmt: skip

    def legs(self) -> set[str]:
        """Ids of the legs whose evidence is there."""
        return {path.parent.name for path in (self.folder / "results/runs").glob("*/events.parquet")}
