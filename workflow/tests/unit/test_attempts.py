"""A leg that its launcher starts again: each attempt is a life, judged as a leg of its own."""

import dataclasses
import json

import pandas as pd
import pytest
from evidence_builder import Scene
from takeback import verdicts
from takeback.checkers import attempts
from takeback.checkers.case import LegView

TABLES = ("losses", "ledger", "digests", "events")
KILL = 6
STRUCK = 103.0 + 0.1 * KILL


class Elastic:
    """One leg of two attempts: the killed run of a scene, and the resumed one as its second attempt."""

    def __init__(self, world=2, resume_world=None, max_restarts=1, **more):
        scene = Scene(world=world, resume_world=resume_world, kill_step=KILL, settings={"steps": 24}, **more)
        launcher = {"kind": "torchrun", "with": {"max_restarts": max_restarts}}
        leg = dataclasses.replace(scene.cell.killed, launcher=launcher)
        axes = {**scene.cell.axes, "resume_by": "launcher"}
        self.cell = dataclasses.replace(scene.cell, lives=(leg,), axes=axes)
        first, second = scene.evidence["killed"], scene.evidence["resumed"]
        events = {"attempt": 0, "rank": -1, "pid": 1, "wall": 0.0, "step": None, "point": None}
        tables = {}
        for table in TABLES:
            parts = [getattr(first, table), getattr(second, table).assign(attempt=1)]
            if table == "events":
                parts = [part[part.kind != "launched"] for part in parts]
            tables[table] = pd.concat(parts, ignore_index=True)
        worlds = (world, resume_world or world)
        told = [self.launched(a, r, w) for a, w in enumerate(worlds) for r in range(w)]
        end = {"of_agent": 0, "of_pid": 1, "status": 0, "signal": None, "known": "kernel", "by": "itself"}
        told.append(("agent_exited", 0, 395.0, end))
        told.append(("launcher_noticed", 0, STRUCK + 0.1, {"of_agent": 0}))
        rows = [events | {"kind": k, "attempt": a, "monotonic": m, "detail": json.dumps(d)} for k, a, m, d in told]
        tables["events"] = pd.concat([tables["events"], pd.DataFrame(rows).astype({"step": "float64"})])
        self.leg = dataclasses.replace(first, leg_id=leg.id, spec=leg.spec, **tables)
        self.others = [scene.evidence["reference"], scene.evidence["twin"]]

    @staticmethod
    def launched(attempt, rank, world, restarts=None, mono=None):
        who = {"of_rank": rank, "of_pid": 1000 + 10 * attempt + rank, "of_agent": 0, "local_rank": rank}
        more = {"restarts": attempt if restarts is None else restarts, "world": world, "command": ["python", "train"]}
        return "launched", attempt, 100.0 + 200.0 * attempt if mono is None else mono, who | more

    def change(self, where, **values):
        """Set columns of the events that ``where`` chooses; ``detail`` is merged."""
        frame = self.leg.events.copy().reset_index(drop=True)
        chosen = frame.index[[bool(where(row)) for row in frame.itertuples()]]
        assert len(chosen)
        for at in chosen:
            for column, value in values.items():
                frame.at[at, column] = (
                    json.dumps(json.loads(frame.at[at, column]) | value) if column == "detail" else value
                )
        self.leg = dataclasses.replace(self.leg, events=frame)
        return self

    def drop(self, where):
        frame = self.leg.events
        kept = [not where(row) for row in frame.itertuples()]
        self.leg = dataclasses.replace(self.leg, events=frame[kept].reset_index(drop=True))
        return self

    def judge(self):
        return verdicts.judge(self.cell, {one.leg_id: one for one in [self.leg, *self.others]})


def test_a_run_that_its_launcher_started_again_is_compared_from_the_checkpoint_on():
    row = Elastic().judge()
    assert (row["verdict"], row["restored_step"]) == ("equal", 4)
    assert (row["restarts"], row["burned"], row["steps_compared"]) == (1, 0, 20)
    assert row["rank_map"] == "0:1000@0.0 1:1001@0.1 → 0:1010@0.0 1:1011@0.1"


def test_a_smaller_group_is_compared_with_the_same_reference():
    row = Elastic(world=2, resume_world=1).judge()
    assert row["verdict"] == "equal"
    assert "changed topology" in row["comparison"]


def test_a_group_of_another_size_than_predicted_is_invalid():
    scene = Elastic(world=2, resume_world=1)
    scene.cell.axes["resume_world"] = 2
    row = scene.judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", "the last group had 1 rank, not 2")


def test_the_parts_of_the_time_add_up():
    row = Elastic().judge()
    parts = [row[name] for name in ("notice_s", "stop_s", "rendezvous_s")]
    assert parts == pytest.approx([0.1, 0.4, 300.0 - 104.1])
    assert (row["load_s"], row["first_step_s"]) == (None, 0.5)


def test_a_difference_after_the_restart_is_seen():
    scene = Elastic()
    frame = scene.leg.losses.copy()
    frame.loc[(frame.attempt == 1) & (frame.step == 9), "loss_bits"] += 1
    scene.leg = dataclasses.replace(scene.leg, losses=frame)
    row = scene.judge()
    assert (row["verdict"], row["first_step"]) == ("different", 9)


def test_a_start_from_scratch_after_the_restart_is_invalid():
    scene = Elastic(restored=0)
    assert scene.judge()["verdict"] == "invalid"


def burnt(scene, restarts):
    """A group between the two in which nobody came to restore anything; it cost a restart, or none."""
    rows = [scene.launched(5, rank, 2, restarts, 150.0) for rank in range(2)]
    base = {"rank": -1, "pid": 1, "wall": 0.0, "step": float("nan"), "point": None}
    new = [base | {"kind": k, "attempt": a, "monotonic": m, "detail": json.dumps(d)} for k, a, m, d in rows]
    error = {"type": "RuntimeError", "text": "connectFullMesh failed"}
    new.append(base | {"kind": "error", "rank": 0, "attempt": 5, "monotonic": 160.0, "detail": json.dumps(error)})
    scene.leg = dataclasses.replace(scene.leg, events=pd.concat([scene.leg.events, pd.DataFrame(new)]))
    # Attempts are numbered in the order of time: the burned one is 1, the last one 2.
    for table in TABLES:
        frame = getattr(scene.leg, table)
        numbers = frame.attempt.map({0: 0, 1: 2, 5: 1})
        scene.leg = dataclasses.replace(scene.leg, **{table: frame.assign(attempt=numbers)})
    return scene


def test_a_restart_that_came_to_nothing_is_burned_and_no_life():
    scene = burnt(Elastic(max_restarts=2), restarts=1)
    scene.change(lambda e: e.kind == "launched" and e.attempt == 2, detail={"restarts": 2})
    row = scene.judge()
    assert (row["verdict"], row["restarts"], row["burned"]) == ("equal", 2, 1)
    assert "1 restart was burned: connectFullMesh failed" in row["diagnosis"]


def test_restarts_are_told_as_burned_also_where_none_came_through():
    scene = burnt(Elastic(max_restarts=2), restarts=1)
    scene.change(lambda e: e.kind == "launched" and e.attempt == 2, detail={"restarts": 2})
    scene.change(lambda e: e.kind == "exited" and e.attempt == 2, detail={"status": 1})
    scene.drop(lambda e: e.kind in ("restored", "finished") and e.attempt == 2)
    for table in ("losses", "digests", "ledger"):
        frame = getattr(scene.leg, table)
        scene.leg = dataclasses.replace(scene.leg, **{table: frame[frame.attempt != 2]})
    row = scene.judge()
    assert (row["verdict"], row["restarts"], row["burned"]) == ("crashed", 2, 2)
    assert "2 restarts were burned: connectFullMesh failed" in row["diagnosis"]


def test_a_group_that_made_room_for_a_larger_one_is_not_burned():
    scene = burnt(Elastic(), restarts=0)
    row = scene.judge()
    assert (row["verdict"], row["restarts"], row["burned"]) == ("equal", 1, 0)


def test_a_launcher_that_gives_up_has_crashed():
    scene = Elastic()
    for table in TABLES:
        frame = getattr(scene.leg, table)
        scene.leg = dataclasses.replace(scene.leg, **{table: frame[frame.attempt == 0].reset_index(drop=True)})
    row = scene.judge()
    assert row["verdict"] == "crashed"
    assert row["diagnosis"].startswith("the launcher did not start the run again (agent 0: status 0 by itself)")


BROKEN = {
    "once more than allowed": (lambda e: e.attempt == 1, {"restarts": 2}, "more often than max_restarts, 1"),
    "one process in two attempts": (lambda e: True, {"of_pid": 7}, "a process was a rank of two attempts"),
    "other arguments": (lambda e: e.attempt == 1, {"command": ["python"]}, "started with different arguments"),
}


@pytest.mark.parametrize(("where", "detail", "says"), BROKEN.values(), ids=BROKEN)
def test_a_launcher_that_breaks_its_contract_is_seen(where, detail, says):
    row = Elastic().change(lambda e: e.kind == "launched" and where(e), detail=detail).judge()
    assert row["verdict"] == "invalid"
    assert says in row["diagnosis"]


def test_processes_of_two_hosts_may_have_the_same_number():
    scene = Elastic()
    scene.change(lambda e: e.kind == "launched" and e.attempt == 1, detail={"of_agent": 1, "of_pid": 1000})
    scene.change(lambda e: e.kind == "launched" and '"of_rank": 1' in e.detail, detail={"of_pid": 1001})
    assert "two attempts" not in scene.judge()["diagnosis"]


def test_a_rank_that_outlives_its_group_is_seen():
    scene = Elastic()
    scene.change(lambda e: e.kind == "exited" and e.attempt == 0, monotonic=301.0)
    scene.change(lambda e: e.kind == "exited" and e.attempt == 0, detail={"of_pid": 1000})
    row = scene.judge()
    assert "was still there when its agent had begun attempt 1" in row["diagnosis"]


def test_a_fault_that_never_struck_was_due_in_the_first_life():
    scene = Elastic().drop(lambda e: e.kind == "fault_fired")
    first, second = attempts.lives_of(LegView(scene.leg))
    assert [len(life.spec["faults"]) for life in (first, second)] == [1, 0]
    assert scene.judge()["verdict"] in ("invalid", "crashed")


def test_of_a_fault_of_nodes_agents_must_have_ended_too():
    scene = Elastic()
    (planned,) = scene.leg.spec["faults"]
    node = {key: value for key, value in planned.items() if key != "ranks"} | {"nodes": [0]}
    scene.leg = dataclasses.replace(scene.leg, spec={**scene.leg.spec, "faults": [node]})
    victims = [{"rank": None, "pid": 1, "node": 0}, {"rank": 1, "pid": 101, "node": 0}]
    scene.change(lambda e: e.kind == "fault_fired", detail={"victims": victims})
    row = scene.judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", "the fault never struck: agent 0 did not end by sigkill")
    scene.change(lambda e: e.kind == "agent_exited", detail={"status": None, "signal": 9, "by": "fault"})
    assert scene.judge()["verdict"] == "equal"
