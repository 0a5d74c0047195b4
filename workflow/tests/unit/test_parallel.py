"""Many processes give the results of one, in its order, and leave nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
from evidence_builder import STATE, Scene, bits_at, digest_of
from takeback import evidence, parallel, verdicts
from takeback.errors import TakebackError

OTHER = digest_of("something else")
SCENES = [
    ("equal", lambda scene: scene, {}),
    ("equal", lambda scene: scene, {"kill_step": 2}),
    ("equal", lambda scene: scene, {"resume_world": 4}),
    ("equal", lambda scene: scene, {"world": 4, "resume_world": 1, "ranks": "all", "at_each_step": True}),
    ("different", lambda scene: scene.change("resumed", "losses", at(21), loss_bits=bits_at(21) + 1), {}),
    ("different", lambda scene: scene.change("resumed", "losses", at(20), loss_dtype="float64"), {}),
    ("different", lambda scene: scene.change("resumed", "losses", at(20), grad_norm_bits=2**60 + 1), {}),
    ("different", lambda scene: scene.change("resumed", "digests", named("ema.w"), digest=OTHER), {"resume_world": 1}),
    ("different", lambda scene: scene.change("resumed", "ledger", at(22), epoch=0), {}),
    ("unrepeatable", lambda scene: scene.change("twin", "losses", at(9), loss_bits=7), {}),
    ("invalid", lambda scene: scene.drop("killed", "events", lambda frame: frame["kind"] == "held"), {}),
    ("invalid", lambda scene: scene.drop("resumed", "losses", lambda frame: frame["rank"] == 1), {}),
    ("not-run", lambda scene: scene.not_run("resumed", "no CUDA device"), {"world": 4}),
    ("equal", lambda scene: done_again(scene), {}),
]


def at(step):
    return lambda frame: frame["step"] == step


def named(name):
    return lambda frame: frame["name"] == name


def done_again(scene):
    """A second attempt did all again; the first told a loss and an entry of its own, which count no more."""
    for table in ("losses", "digests", "ledger"):
        first = getattr(scene.evidence["resumed"], table)
        wrong = {"digests": {"name": first.get("name", "") + ".gone"}, "losses": {"loss_bits": 1}}.get(
            table, {"epoch": 7}
        )
        scene._put("resumed", table, pd.concat([first.assign(**wrong), first.assign(attempt=1)], ignore_index=True))
    return scene


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """An experiment with cells of every kind in mixed order, and its evidence in memory and as files."""
    runs, scenes = tmp_path_factory.mktemp("runs"), []
    for seed, (_, damage, shape) in enumerate(SCENES):
        scenes.append(damage(Scene(settings={"seed": seed}, **shape)))
    scenes += [Scene(settings={"seed": 0}, resume_world=world) for world in (1, 4)]  # which share legs
    scenes = scenes[::2] + scenes[1::2]
    for one in {one.leg_id: one for scene in scenes for one in scene.evidence.values()}.values():
        (runs / one.leg_id).mkdir()
        for table in evidence.TABLES:
            evidence.write_table(runs / one.leg_id / f"{table}.parquet", table, getattr(one, table))
        evidence.write_json(runs / one.leg_id / "leg.json", one.spec)
        evidence.write_json(runs / one.leg_id / "provenance.json", one.provenance)
    experiment = SimpleNamespace(name="mixed", cells=tuple(scene.cell for scene in scenes), claims=())
    return scenes, experiment, runs


def test_the_mixed_cells_are_what_they_were_made_to_be(mixed):
    scenes, *_ = mixed
    expected = {str(seed): verdict for seed, (verdict, *_) in enumerate(SCENES)}
    got = {str(scene.cell.axes["trainer.seed"]): scene.judge()["verdict"] for scene in scenes}
    assert got == expected


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_files_judged_by_many_processes_give_the_rows_of_evidence_judged_cell_by_cell(mixed, processes):
    scenes, experiment, runs = mixed
    judged = verdicts.judge_experiment(experiment, runs, processes)
    pd.testing.assert_frame_equal(judged, verdicts._frame([scene.judge() for scene in scenes]))


def test_an_entry_of_an_attempt_that_was_done_again_is_none_of_the_states_names(mixed):
    scenes, _, runs = mixed
    again = next(scene for scene in scenes if scene.cell.axes["trainer.seed"] == len(SCENES) - 1)
    names = verdicts.LegView(evidence.read(runs, again.cell.resumed.id)).states.names
    assert names == tuple(STATE)


def test_the_first_error_in_order_is_the_one_that_is_told():
    def work(number):
        if number in (3, 4):
            raise TakebackError(f"thing {number}")

    with pytest.raises(TakebackError, match="thing 3"):
        parallel.mapped(work, range(6), 2)


def test_a_process_that_was_ended_from_outside_is_one_line():
    with pytest.raises(TakebackError, match="ended from outside"):
        parallel.mapped(lambda number: number and os.kill(os.getpid(), signal.SIGKILL), range(4), 2)


def test_processes_end_when_the_one_that_asked_is_gone():
    code = """
import os, select, sys
from takeback import parallel
asked = os.pidfd_open(os.getpid())
def work(thing):
    os.write(1, f"{os.getpid()}\\n".encode())
    select.select([asked], [], [])
    return bytes(10**6)  # more than a pipe holds
parallel.mapped(work, range(2), 2)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as asked:
        ends = [os.pidfd_open(int(asked.stdout.readline())) for _ in range(2)]
        asked.kill()
    waiting = set(ends)
    try:
        while waiting and (ended := select.select(waiting, [], [], 30)[0]):
            waiting -= set(ended)
        assert not waiting, "it waits for a reader that is gone"
    finally:
        for end in ends:  # also of those whose guard is broken, when the test itself is out of time
            if end in waiting:
                signal.pidfd_send_signal(end, signal.SIGKILL)
            os.close(end)
