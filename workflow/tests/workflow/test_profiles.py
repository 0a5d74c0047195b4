"""Profiles say where runs are, and change no bit: on a real Slurm of this machine, and dry for the others."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from flow import FOREIGN, ROOT, SMALL, Flow
from takeback import experiment, slurm

PROFILES = ROOT / "workflow/profiles"
#: Where plugins are that the environment itself lacks, as each slows down every Snakemake.
PLUGINS = os.environ.get("TAKEBACK_PLUGINS", "")


def needs(plugin, environment):
    """Skip where Snakemake has no such plugin."""
    module = f"snakemake_executor_plugin_{plugin}"
    if importlib.util.find_spec(module) is None and not Path(PLUGINS, module).is_dir():
        how = f"pip install --no-deps --target DIR -r envs/{environment}.txt, and name DIR in TAKEBACK_PLUGINS"
        pytest.skip(f"{environment}: Snakemake has no plugin for it here; {how}")


class Elsewhere(Flow):
    """As its base, under a profile."""

    def __init__(self, folder, profile, *before, **given):
        super().__init__(folder, **given)
        self.profile, self.before = profile, before

    def words(self, *targets, **config):
        return [*self.before, *super().words(*targets, **config), "--profile", str(PROFILES / self.profile)]

    @property
    def environment(self):
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.root / "workflow"), PLUGINS])}


#: Runs a command on a cluster, and tells afterwards what jobs it has had.
ON_SLURM = [sys.executable, "-m", "takeback", "slurm", "--", "sh", "-c"]
ON_SLURM.append('"$@"; status=$?; echo; scontrol -o show job; exit $status')
ON_SLURM.append("sh")
#: So that a short test does not wait for Snakemake's next question.
EAGER = ["--seconds-between-status-checks", "1"]
JOB = re.compile(r"^JobId=(\d+) .*JobState=(\w+) .*NodeList=(\S+)", re.M)


@pytest.fixture(scope="module")
def on_slurm(tmp_path_factory):
    needs("cluster_generic", "slurm")
    if reason := slurm.unavailable():
        pytest.skip(reason)

    def flow(**experiments):
        return Elsewhere(tmp_path_factory.mktemp("slurm"), "slurm", *ON_SLURM, **experiments)

    return flow


@pytest.fixture(scope="module")
def small_on_slurm(on_slurm):
    """(the flow, the completed call) of ``snakemake --profile … small``."""
    flow = on_slurm(small=SMALL)
    return flow, flow.run("small", *EAGER)


def test_every_job_goes_through_slurm_and_several_runs_in_one(small_on_slurm):
    flow, call = small_on_slurm
    assert call.returncode == 0, call.stdout
    jobs = JOB.findall(call.stdout)
    assert {state for _, state, _ in jobs} == {"COMPLETED"}
    assert len(flow.legs()) == 10
    # Ten runs in four families are one submission; verdicts and page are one each.
    assert len(jobs) == 3


def test_verdicts_on_slurm_are_those_of_this_machine(small_on_slurm, finished):
    compared = ["cell", "verdict", "surprise", "first_step", "first_state", "diagnosis", "restored_step", "max_ulp"]
    tables = [
        pd.read_parquet(flow.folder / "results/small/verdicts.parquet")[compared]
        for flow, _ in (finished, small_on_slurm)
    ]
    pd.testing.assert_frame_equal(*tables)


def test_runs_on_slurm_have_the_bits_of_this_machine(small_on_slurm, finished):
    (here, _), (there, _) = finished, small_on_slurm
    legs = here.legs() & there.legs()
    assert len(legs) == 10
    for leg in legs:
        for table, bits in (("losses", "loss_bits"), ("digests", "digest")):
            rows = [pd.read_parquet(flow.folder / "results/runs" / leg / f"{table}.parquet") for flow in (here, there)]
            assert rows[0][bits].tolist() == rows[1][bits].tolist(), (leg, table)


def test_ranks_on_several_nodes_are_started_by_srun_with_the_bits_of_one_node(on_slurm):
    one = {**SMALL, "matrix": {**SMALL["matrix"], "resume_world": 2}, "controls": [], "claims": []}
    flow = on_slurm(spread={**one, "include": [{"launcher": {"kind": "hosts", "with": {"nproc": 1}}}]})
    call = flow.run("spread", *EAGER)
    assert call.returncode == 0, call.stdout
    both = [nodes for _, _, nodes in JOB.findall(call.stdout) if nodes == "n[0-1]"]
    assert len(both) == 1, "the runs on two nodes are one submission"
    here, there = (cell.resumed.id for cell in experiment.load(flow.folder / "experiments/spread.yaml", ROOT).cells)
    assert sorted(row["of_agent"] for row in events(flow, there, "launched")) == [0, 1]
    assert sorted(row["name"] for row in events(flow, there, "agent_launched")) == ["n0", "n1"]
    losses = [pd.read_parquet(flow.folder / "results/runs" / leg / "losses.parquet") for leg in (here, there)]
    assert losses[0]["loss_bits"].tolist() == losses[1]["loss_bits"].tolist()


def events(flow, leg, kind):
    """Details of the events of a kind."""
    found = pd.read_parquet(flow.folder / "results/runs" / leg / "events.parquet")
    return [json.loads(row.detail) | {"rank": row.rank} for row in found[found.kind == kind].itertuples()]


def reference_of(flow, name):
    """The evidence of an experiment's reference, as a target."""
    cell = experiment.load(flow.folder / f"experiments/{name}.yaml", ROOT).cells[0]
    return f"results/runs/{cell.reference.id}/events.parquet"


def test_a_job_that_is_cancelled_by_hand_fails_and_the_rest_goes_on(on_slurm):
    flow = on_slurm(one=FOREIGN, other={**FOREIGN, "matrix": {**FOREIGN["matrix"], "world": 1}})
    targets = [reference_of(flow, name) for name in ("one", "other")]
    # The first job that comes is cancelled; the other is let run.
    hand = "while ! job=$(squeue -h -o %A | sort -n | head -1 | grep .); do sleep 0.1; done; scancel $job"
    flow.before = [*ON_SLURM[:-2], f"({hand}) & " + ON_SLURM[-2], "sh"]
    call = flow.run(*targets, "-k", "--group-components", "runs=1", *EAGER)
    assert call.returncode != 0
    assert sorted(state for _, state, _ in JOB.findall(call.stdout)) == ["CANCELLED", "COMPLETED"]
    assert len(flow.legs()) == 1


def test_a_partition_that_is_not_there_is_named(on_slurm):
    flow = on_slurm(one=FOREIGN)
    submit = "sbatch --parsable --partition=nowhere"
    call = flow.run(reference_of(flow, "one"), "--cluster-generic-submit-cmd", submit)
    assert call.returncode != 0
    assert "invalid partition specified: nowhere" in call.stdout


def test_without_slurm_it_ends_and_says_so(tmp_path, monkeypatch):
    needs("cluster_generic", "slurm")
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "sbatch").exists()))
    flow = Elsewhere(tmp_path, "slurm", one=FOREIGN)
    call = flow.run(reference_of(flow, "one"))
    assert call.returncode == 1
    assert "sbatch: not found" in call.stdout


@pytest.mark.parametrize("profile", ["tpu-pod", "kubernetes"])
def test_a_profile_plans_the_same_runs(tmp_path, profile):
    if profile == "kubernetes":
        needs("kubernetes", "kubernetes")
    call = Elsewhere(tmp_path, profile, small=SMALL).run("small", "--dry-run")
    assert call.returncode == 0, call.stdout
    assert re.search(r"^leg +10$", call.stdout, re.M)
    assert not (tmp_path / "results").exists()


def test_on_a_pod_one_run_is_at_work_at_a_time(tmp_path):
    nowhere = {**FOREIGN, "matrix": {**FOREIGN["matrix"], "backend": "nccl", "world": 2}}  # not-run, and at once
    flow = Elsewhere(tmp_path, "tpu-pod", one=nowhere, other={**nowhere, "deadline": 100})
    call = flow.run(*(reference_of(flow, name) for name in ("one", "other")), warm=False)
    assert call.returncode == 0, call.stdout
    assert len(flow.legs()) == 2
    assert call.stdout.count("Execute 1 jobs") == 2


@pytest.mark.parametrize("profile", sorted(path.parent.name for path in PROFILES.glob("*/profile.yaml")))
def test_each_setting_of_a_profile_is_explained(profile):
    text = (PROFILES / profile / "profile.yaml").read_text()
    for block in text.strip().split("\n\n"):
        assert block.startswith("#"), block
    assert f"`{profile}`" in (PROFILES / "README.md").read_text()
