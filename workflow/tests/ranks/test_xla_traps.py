"""Traps of torch_xla: each is caught without its remedy, and not with it; and a notice of preemption by its runtime."""

import pandas as pd
import pytest
from launch import events, fault, losses, run
from takeback import environments, pool_client, storage
from takeback.leg import Leg
from warm import running_pool

NAME = "xla"
pytestmark = pytest.mark.skipif(
    not environments.is_there(NAME), reason="needs the environment xla: python -m takeback environment xla"
)
MODULE = "takeback.backends.xla"


@pytest.fixture(scope="module", autouse=True)
def in_a_pool():
    with pytest.MonkeyPatch.context() as patch, running_pool(environment=NAME) as name:
        patch.setenv(pool_client.variable(NAME), name)
        yield


def trap(name, remedy, **more):
    words = ["python", "-m", f"{MODULE}.traps", "--checkpoints", "{checkpoints}", "--trap", name]
    return Leg({"command": words, "settings": {"remedy": remedy, "steps": 6}}, "xla", 1, **more)


def finished(leg, runs):
    assert run(leg, runs, 300).returncode == 0
    return leg


def killed_and_resumed(runs, name, remedy, then):
    killed = finished(trap(name, remedy, faults=(fault(6),)), runs)
    resumed = finished(trap(name, then, parent=killed), runs)
    assert events(resumed, runs, "restored").step.tolist() == [4]
    return killed, resumed


def first_difference(killed, resumed, runs):
    """Step and name of the first state that the two have not in common, at steps 4 to 6; None if there is none."""
    before, after = (pd.read_parquet(runs / leg.id / "digests.parquet") for leg in (killed, resumed))
    before = before[((before.moment == "saved") & (before.step == 4)) | ((before.moment == "step") & (before.step > 4))]
    after = after[after.moment.isin(["loaded", "step"])]
    both = before.merge(after, on=["step", "name"], validate="one_to_one").sort_values(["step", "order_x"])
    assert len(both) == len(before) == len(after) > 0
    found = both[both.digest_x != both.digest_y]
    return None if found.empty else (int(found.iloc[0].step), found.iloc[0]["name"])


@pytest.mark.parametrize(
    ("name", "remedy", "then", "first"),
    [
        ("hidden_sync", "yes", "yes", None),
        ("hidden_sync", "no", "no", (5, "model.0.weight")),
        ("late_write", "yes", "yes", None),
        ("late_write", "no", "no", (4, "optimizer.step.0.weight")),
        ("graph_boundary", "yes", "yes", None),
        ("graph_boundary", "no", "no", None),
        ("graph_boundary", "yes", "no", (5, "model.0.weight")),
    ],
)
def test_a_trap_is_caught_without_its_remedy_alone(tmp_path, name, remedy, then, first):
    killed, resumed = killed_and_resumed(tmp_path, name, remedy, then)
    assert first_difference(killed, resumed, tmp_path) == first


@pytest.mark.parametrize("remedy", ["yes", "no"])
def test_a_save_that_has_failed_is_told_by_the_remedy_alone(tmp_path, remedy):
    if reason := storage.no_mounts():
        pytest.skip(reason)
    full = {"id": "0", "kind": "disk_full", "ranks": "last", "point": "restored", "step": 0, "attempt": 0}
    leg = finished(trap("silent_join", remedy, faults=(full,)), tmp_path)
    assert not list((tmp_path / leg.id / "checkpoints").glob("*/.manager_metadata"))
    told = [events(leg, tmp_path, kind).step.tolist() for kind in ("saved", "finished")]
    assert told == ([[], []] if remedy == "yes" else [[4], [6]])
    errors = events(leg, tmp_path, "error")
    assert (errors.text.tolist() if len(errors) else []) == (
        ["the checkpoint of step 4 was not written"] if remedy == "yes" else []
    )


LINGERS = """
import os, time
from takeback import probe
from takeback.backends import xla
from takeback.backends.xla import preemption, world

xla.setup(0)
world.ranks(2, "gloo")
probe.restored(0)
preemption.listen()
preemption.leave_last()
time.sleep(int(os.environ["RANK"]))
"""


def test_the_rank_with_the_coordinator_outlives_one_that_takes_its_time(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(LINGERS)
    leg = finished(
        Leg({"command": ["python", str(path), "{checkpoints}"], "settings": {}}, "xla_processes", 2), tmp_path
    )
    exits = events(leg, tmp_path, "exited")
    assert exits.of_rank.tolist() == [1, 0]
    assert exits.status.tolist() == [0, 0]


def test_a_notice_to_one_process_makes_all_save_at_one_step_and_leave(tmp_path):
    words = ["python", "-m", f"{MODULE}.preemption", "--checkpoints", "{checkpoints}"]
    trainer = {"command": words, "settings": {"steps": 12, "pace": 0.25}}
    notice = {**fault(2, [1]), "kind": "sigterm", "with": {"grace": 60.0}}
    whole = finished(Leg(trainer, "xla_processes", 2), tmp_path)
    told = finished(Leg(trainer, "xla_processes", 2, faults=(notice,)), tmp_path)
    resumed = finished(Leg(trainer, "xla_processes", 2, parent=told), tmp_path)
    first, second = events(told, tmp_path, "saved").step
    assert first == second >= 2
    assert events(told, tmp_path, "exited").status.tolist() == [143, 143]
    assert events(resumed, tmp_path, "restored").step.tolist() == [first, first]
    reference = losses(whole, tmp_path)
    pd.testing.assert_series_equal(
        losses(resumed, tmp_path).loss_bits, reference[reference.step > first].loss_bits, check_index=False
    )
