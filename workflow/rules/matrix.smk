"""Reads the experiments; makes no files.

Needs: experiments/*.yaml (another folder: --config experiments=FOLDER).
Makes: EXPERIMENTS, name → Experiment; LEGS, id → Leg; the functions that the rules ask for their files.

A mistake in an experiment ends here, in one line, before any job.
"""

import os
import shlex
import sys
import time
from pathlib import Path

LOADED = time.time()

ROOT = Path(workflow.basedir)
# The interpreter that runs Snakemake is the one that has the package, whatever `python` is on the PATH.
# (A prefix takes the place of Snakemake's own, which is bash's strict mode.)
shell.prefix(
    f"set -euo pipefail; export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; "
)


def stop(message):
    """One line and out, where an exception would print a page."""
    print(f"takeback: {message}", file=sys.stderr)
    sys.exit(1)


try:
    import takeback
    from takeback import backends, environments, experiment as experiments, launchers
    from takeback import sources
    from takeback.launchers import place
    from takeback.leg import launcher_of, processes_of
except ModuleNotFoundError as error:
    stop(f"{error.name} is not installed; run: python -m pip install -r envs/cpu.txt")
if not Path(takeback.__file__).is_relative_to(ROOT):
    stop(
        f"the installed takeback is that of another copy, {Path(takeback.__file__).parents[2]}; "
        "run here: python -m pip install -r envs/cpu.txt"
    )

for folder in (Path.cwd(), Path("results").absolute()):
    if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK)):
        stop(
            f"{folder}: is no folder that can be written; name another: --directory FOLDER"
        )

FOLDER = Path(config.get("experiments", ROOT / "experiments"))
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
if not FILES:
    stop(
        f"no experiment in {FOLDER}; put a YAML file there or name a folder: --config experiments=FOLDER"
    )

ENVIRONMENTS = backends.environments()

try:
    EXPERIMENTS = {name: experiments.load(path, ROOT) for name, path in FILES.items()}
except experiments.ExperimentError as error:
    stop(error)
# An interpreter of the user's own; jobs find it in their environment.
for name in ENVIRONMENTS:
    if f"{name}_python" in config:
        os.environ[environments.variable(name)] = os.path.abspath(
            config[f"{name}_python"]
        )
# Those that could not be had are to be tried again. Another call may be at work, and need the record for its legs.
ALONE = not any(Path(".snakemake/locks").glob("*"))
if ALONE:
    environments.forget(Path("results/envs"))
# What runs if nobody says what: one experiment here, all of them in a folder of the user's own.
DEFAULT = ["kill_resume"] if "kill_resume" in EXPERIMENTS else list(EXPERIMENTS)
LEGS = {leg: found for one in EXPERIMENTS.values() for leg, found in one.legs.items()}
# Runs whose times are asked for.
TIMED = {leg for one in EXPERIMENTS.values() for leg in one.timed}


def evidence_of(leg):
    """The file of a leg that is written last."""
    return f"results/runs/{leg}/events.parquet"


def evidence_of_all(wildcards):
    """Evidence of all legs of an experiment that there is time for."""
    return [evidence_of(leg) for leg in to_run(wildcards.experiment).legs]


def file_of(wildcards):
    """The file of an experiment, seen from the working directory."""
    return os.path.relpath(FILES[wildcards.experiment])


wildcard_constraints:
    experiment="|".join(EXPERIMENTS),
