"""Every verdict, and each comparison, on hand-made evidence."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
import weakref
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from evidence_builder import STATE, Scene, bits_at, digest_of
from takeback import evidence, verdicts
from takeback.bits import MAX_ULP
from takeback.evidence import EvidenceError
from takeback.matrix import Expectation

OTHER = digest_of("something else")


def entry(name, *, moment=None, ranks=None, after=0):
    """Rows of one state entry: at a moment, on some ranks, from a step on."""

    def where(frame):
        chosen = (frame["name"] == name) & (frame["step"] >= after)
        chosen &= (frame["moment"] == moment) if moment else True
        return chosen & (frame["rank"].isin(ranks) if ranks is not None else True)

    return where


def kind(name, rank=None):
    return lambda frame: (frame["kind"] == name) & ((frame["rank"] == rank) if rank is not None else True)


def steps(first, last=10**6, rank=None):
    return lambda frame: frame["step"].between(first, last) & ((frame["rank"] == rank) if rank is not None else True)


def exits(scene, leg, **how):
    """Let all ranks of a leg end in one way."""
    scene.drop(leg, "events", kind("exited"))
    for rank in range(scene.evidence[leg].spec["world"]):
        scene.add_event(leg, "exited", **({"of_rank": rank, "signal": None, "by": "itself"} | how))
    return scene


# Equal


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"kill_step": 2},
        {"kill_step": 8, "point": "saved"},
        {"world": 4, "ranks": "all"},
        {"world": 4, "own_rng": True},
        {"world": 1, "resume_world": 4},
        {"world": 4, "resume_world": 1},
        {"world": 2, "resume_world": 4, "settings": {"reduction": "allreduce"}},
        {"at_each_step": True},
        {"digests": False, "ledger": False},
        {"backend": "xla", "world": 4},  # one process, a mesh of four devices
        {"backend": "xla", "world": 4, "resume_world": 2},
    ],
    ids=str,
)
def test_a_whole_resume_is_equal(shape):
    row = Scene(**shape).judge()
    assert (row["verdict"], row["surprise"], row["first_step"], row["max_ulp"]) == ("equal", False, None, 0)


def test_an_equal_cell_says_what_agrees_and_which_steps_were_done_twice():
    row = Scene().judge()
    assert row["diagnosis"] == (
        "equal: 8 losses, 112 state digests and the samples of 24 steps agree bit for bit; "
        "steps 17-19 were done twice and equal their first execution"
    )
    assert "losses of steps 17-24 as float32 bits, rank by rank" in row["comparison"]
    assert row["comparison"].startswith("same topology, gloo: resumed leg (world 2) against")


def test_a_comparison_says_which_settings_its_reference_had_no_need_of():
    row = Scene(settings={"timeout": 2}).judge()
    assert "against the uninterrupted reference (world 2, without timeout)" in row["comparison"]


def test_a_start_from_scratch_is_right_and_said_where_nothing_was_committed():
    row = Scene(kill_step=2).judge()
    assert (row["verdict"], row["restored_step"], row["committed_step"]) == ("equal", 0, 0)
    assert "no checkpoint was committed before the fault" in row["diagnosis"]


def test_without_state_it_is_said_that_none_was_compared():
    assert "no state told: not compared" in Scene(digests=False).judge()["diagnosis"]


def test_state_that_is_not_told_at_loads_is_not_compared_there_and_said():
    scene = Scene()
    for leg in scene.evidence:
        scene.drop(leg, "digests", lambda frame: frame["moment"] == "loaded")
    row = scene.judge()
    assert row["verdict"] == "equal"
    assert "not told both at the save of step 16 and right after its load: not compared there" in row["diagnosis"]


def test_without_a_ledger_the_samples_are_not_called_equal():
    row = Scene(ledger=False).judge()
    assert row["samples_equal"] is None
    assert "no ledger: samples not compared" in row["diagnosis"]


def test_a_leg_that_told_nothing_to_compare_is_not_equal():
    scene = Scene(digests=False, steps=20, kill_step=20, point="saved")
    assert scene.judge()["verdict"] == "invalid"


# Receipts


def test_a_restart_from_scratch_is_invalid_although_every_loss_agrees():
    row = Scene(restored=0).judge()
    assert (row["verdict"], row["restored_step"], row["committed_step"]) == ("invalid", 0, 16)
    assert "silent restart from scratch although step 16 was committed" in row["diagnosis"]
    assert "every loss agrees with the reference (24 losses)" in row["diagnosis"]


def test_a_restart_from_scratch_does_not_claim_agreement_that_is_not_there():
    row = Scene(restored=0).change("resumed", "losses", steps(20), loss_bits=bits_at(1)).judge()
    assert row["verdict"] == "invalid"
    assert "every loss agrees" not in row["diagnosis"]


def test_an_older_checkpoint_than_the_newest_committed_one_is_invalid():
    row = Scene(restored=12).judge()
    assert row["verdict"] == "invalid"
    assert "step 12 was restored although step 16 was committed" in row["diagnosis"]


def destroyed(scene, *steps, told=(), leg="killed"):
    """The fault damaged the checkpoints of some steps, as its receipt says; the trainer told of some that they are."""
    receipt = scene.evidence[leg].events
    receipt = json.loads(receipt.detail[receipt.kind == "fault_fired"].item())
    text = json.dumps({**receipt, "seen": {"destroyed": list(steps)}})
    scene.change(leg, "events", kind("fault_fired"), detail=text)
    for step in told:
        scene.add_event("resumed", "damaged", rank=0, step=step, file=f"step-{step}", reason="is torn")
    return scene


def test_the_fallback_from_a_checkpoint_that_the_fault_destroyed_and_the_trainer_told_of_is_equal():
    row = destroyed(Scene(restored=12), 16, told=[16]).judge()
    assert (row["verdict"], row["restored_step"], row["committed_step"]) == ("equal", 12, 16)
    assert "destroyed the checkpoint of step 16, and the trainer told so: step 12 was the newest" in row["diagnosis"]
    assert "steps 13-19 were done twice" in row["diagnosis"]


@pytest.mark.parametrize(
    ("steps", "told", "restored"),
    [
        ([16], [], 12),  # it told nothing
        ([], [16], 12),  # nothing was destroyed
        ([16], [12], 12),  # it told of another one
        ([16], [16], 8),  # there was a newer one that is whole
        ([12, 16], [16], 8),  # of one it told nothing
        ([16], [12, 16], 8),  # one that it calls damaged was whole
        ([8, 12, 16], [8, 12, 16], 0),  # step 4 was committed, too
    ],
)
def test_a_fallback_that_the_fault_does_not_account_for_is_invalid(steps, told, restored):
    row = destroyed(Scene(restored=restored), *steps, told=told).judge()
    assert row["verdict"] == "invalid"
    assert "although step 16 was committed" in row["diagnosis"]


def test_a_checkpoint_that_was_written_anew_after_it_was_destroyed_is_due_again():
    scene = destroyed(Scene(kill_step=10, then=[{"kill_step": 11}], restored=4), 8, told=[8])
    scene.evidence["life 1"] = scene._killed(scene.cell.lives[1], 11, "step", 4)
    row = scene.add_event("life 1", "damaged", rank=0, step=8, file="step-8", reason="is torn").judge()
    assert row["verdict"] == "invalid"
    assert "step 4 was restored although step 8 was committed" in row["diagnosis"]


def test_a_checkpoint_that_was_never_committed_is_invalid():
    row = Scene(restored=20).judge()
    assert (row["verdict"], row["restored_step"]) == ("invalid", 20)


@pytest.mark.parametrize("restored", [4, 8])
def test_killed_inside_a_save_whose_commit_is_not_told_both_checkpoints_are_right(restored):
    assert Scene(kill_step=8, point="save.pointer", restored=restored).judge()["verdict"] == "equal"


@pytest.mark.parametrize(
    ("point", "right"), [("save.begin", 4), ("save.write", 4), ("save.commit", 4), ("save.pointer", 8)]
)
def test_killed_inside_a_save_only_the_checkpoint_that_was_committed_is_right(point, right):
    def judged(restored):
        return Scene(kill_step=8, point=point, restored=restored, commits=True).judge()

    assert (judged(right)["verdict"], judged(right)["committed_step"]) == ("equal", right)
    wrong = judged(12 - right)
    assert wrong["verdict"] == "invalid"
    why = "step 4 was restored although step 8 was committed" if right == 8 else "no checkpoint of it was committed"
    assert why in wrong["diagnosis"]


def test_what_was_committed_while_the_fault_struck_leaves_no_choice():
    scene = Scene(kill_step=20, restored=16).add_event("killed", "committed", rank=0, mono=500.0, step=20)
    assert "step 16 was restored although step 20 was committed" in scene.judge()["diagnosis"]


def test_a_life_that_saved_nothing_leaves_behind_what_it_had_restored():
    lives = [{"kill_step": 18}]  # restored 16, struck before the save of 20
    row = Scene(kill_step=17, then=lives).judge()
    assert (row["verdict"], row["committed_step"], row["restored_step"]) == ("equal", 16, 16)
    row = Scene(kill_step=17, then=lives, restored=12).judge()
    assert (row["verdict"], row["committed_step"]) == ("invalid", 16)


@pytest.mark.parametrize(("last", "verdict"), [(20, "equal"), (21, "invalid")])
def test_a_kill_at_any_instruction_may_fall_between_a_rename_and_its_record(last, verdict):
    """After step 20 a save is due, which the victim could complete and not tell; after step 21 it had told."""
    scene = Scene(kill_step=last, point="random", restored=20, commits=True)
    scene.drop("killed", "events", kind("held"))
    if last == 21:
        scene.drop("killed", "events", lambda f: f["kind"].isin(["saved", "committed"]) & (f["step"] == 20))
    assert scene.judge()["verdict"] == verdict


@pytest.mark.parametrize(
    ("ends_by", "end", "verdict"),
    [
        ([{"signal": 9}, {"status": 143}], {"signal": 9}, "equal"),
        ([{"signal": 9}, {"status": 143}], {"known": "nobody", "status": None}, "equal"),
        ([{"signal": 9}, {"status": 143}], {"status": 143}, "invalid"),
        ([{"signal": 9}], {"signal": 9}, "invalid"),
    ],
)
def test_a_save_on_notice_may_be_cut_off_between_its_rename_and_its_record(ends_by, end, verdict):
    """The reference saves nothing after step 18: on notice the victim did, and was killed at the end of its grace."""
    scene = Scene(kill_step=18, restored=18, commits=True, ranks="all")
    ends_by = [*ends_by, {"known": "nobody"}]
    for name in ("fault_armed", "fault_fired"):
        (text,) = scene.evidence["killed"].events.query("kind == @name").detail
        scene.change("killed", "events", kind(name), detail=json.dumps(json.loads(text) | {"ends_by": ends_by}))
    row = exits(scene, "killed", **end, by="fault").judge()
    assert row["verdict"] == verdict
    assert ("had saved and could not tell" in row["diagnosis"]) is (verdict == "equal")


def test_of_several_lives_each_is_judged():
    lives = [{"kill_step": 11, "world": 2}, {"kill_step": 19, "world": 1}]

    def row(change=lambda scene: scene):
        return change(Scene(world=4, resume_world=2, kill_step=6, then=lives)).judge()

    assert (row()["verdict"], row()["restored_step"]) == ("equal", 16)
    early = row(lambda scene: scene.change("life 1", "losses", steps(9), loss_bits=7))
    assert (early["verdict"], early["first_step"]) == ("different", 9)
    silent = row(lambda scene: scene.change("life 1", "events", kind("restored"), step=0.0))
    assert (silent["verdict"], silent["committed_step"]) == ("invalid", 4)
    spared = row(lambda scene: scene.drop("life 2", "events", kind("held")))
    assert spared["diagnosis"] == "the fault never struck: its point step of step 19 was never reached"


def test_samples_are_followed_over_all_lives():
    scene = Scene(kill_step=6, then=[{"kill_step": 11}])
    assert scene.judge()["samples_equal"]
    row = scene.drop("life 1", "ledger", steps(7)).judge()
    assert (row["verdict"], row["samples_equal"]) == ("different", False)


def test_a_life_that_is_struck_while_it_loads_owes_no_receipt():
    scene = Scene(kill_step=6, then=[{"kill_step": 0, "point": "load"}])
    row = scene.judge()
    assert (row["verdict"], row["restored_step"]) == ("equal", 4)


def test_a_trainer_that_never_tells_of_a_checkpoint_can_not_be_judged():
    scene = Scene(restored=0)
    for leg in scene.evidence:
        scene.drop(leg, "events", kind("saved"))
    row = scene.judge()
    assert row["verdict"] == "invalid"
    assert row["diagnosis"] == "the trainer never told of a complete checkpoint, so a resume can't be judged"


@pytest.mark.parametrize("leg", ["reference", "twin", "killed"])
def test_a_leg_that_found_a_checkpoint_of_another_run_is_invalid(leg):
    row = Scene(kill_step=2).change(leg, "events", kind("restored", 1), step=4.0).judge()
    assert row["verdict"] == "invalid"
    assert "did not start from scratch, as far as it told: rank 1 restored step 4" in row["diagnosis"]


@pytest.mark.parametrize("leg", ["reference", "twin", "killed"])
def test_a_leg_that_does_not_tell_where_it_starts_is_invalid(leg):
    row = Scene().drop(leg, "events", kind("restored", 0)).judge()
    assert row["verdict"] == "invalid"
    assert "did not start from scratch, as far as it told: rank 0 told no restored step" in row["diagnosis"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda s: s.change("reference", "events", kind("restored", 1), monotonic=999.0), "came after the first step"),
        (lambda s: s.drop("reference", "losses", steps(1, 4)), "its first step was 5"),
    ],
)
def test_a_start_from_scratch_that_the_steps_belie_is_invalid(damage, why):
    row = damage(Scene()).judge()
    assert row["verdict"] == "invalid"
    assert why in row["diagnosis"]


def test_a_victim_struck_before_its_first_step_owes_no_receipt():
    scene = Scene(kill_step=2).drop("killed", "events", kind("restored", 1))
    for table in ("losses", "ledger", "digests"):
        scene.drop("killed", table, lambda frame: frame["rank"] == 1)
    scene.drop("killed", "events", kind("first_step", 1))
    assert scene.judge()["verdict"] == "equal"


def test_a_resume_receipt_that_names_no_step_is_none():
    row = Scene(kill_step=2).change("resumed", "events", kind("restored"), step=np.nan).judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", "no resume receipt: none from ranks 0-1")


@pytest.mark.parametrize(
    ("kill_step", "restored", "words"),
    [(19, 20, "the handover control hands over at step 16"), (2, 4, "the reference has no handover")],
)
def test_a_handover_at_another_step_than_the_restored_one_is_invalid(kill_step, restored, words):
    scene = Scene(world=2, resume_world=4, kill_step=kill_step, settings={"reduction": "allreduce"}, restored=restored)
    # Survivors saved once more after the fault, which nobody could foresee.
    row = scene.add_event("killed", "saved", rank=0, mono=500.0, step=restored).judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", f"{words}, the resume restored {restored}")


def test_before_the_first_save_the_reference_has_the_topology_of_the_resumed_leg():
    scene = Scene(world=2, resume_world=4, kill_step=2, settings={"reduction": "allreduce"})
    row = scene.change("killed", "losses", steps(1), loss_bits=bits_at(7)).judge()
    assert row["verdict"] == "equal"


def test_a_checkpoint_that_survivors_completed_after_the_fault_may_be_restored():
    scene = Scene(kill_step=20, restored=20)
    row = scene.add_event("killed", "saved", rank=0, mono=500.0, step=20).judge()
    assert row["verdict"] == "equal"
    assert "the killed leg completed after the fault had struck" in row["diagnosis"]


@pytest.mark.parametrize("restored", [16, 20])
def test_what_a_survivor_tells_between_a_strike_and_its_receipt_came_after_the_strike(restored):
    scene = Scene(kill_step=20, restored=restored)
    armed = scene.evidence["killed"].events.query("kind == 'fault_armed'").monotonic.item()
    scene.change("killed", "events", kind("fault_fired"), monotonic=armed + 0.09)
    scene.add_event("killed", "saved", rank=0, mono=armed + 0.05, step=20)
    assert scene.judge()["verdict"] == "equal"


def test_a_fault_whose_point_was_never_reached_is_invalid():
    scene = Scene().drop("killed", "events", kind("held")).drop("killed", "events", kind("fault_fired"))
    row = exits(scene, "killed", status=0).judge()
    assert row["verdict"] == "invalid"
    assert row["diagnosis"] == "the fault never struck: its point step of step 19 was never reached"


def test_a_fault_that_was_held_and_not_fired_is_invalid():
    scene = exits(Scene(), "killed", status=0).drop("killed", "events", kind("fault_fired"))
    row = scene.judge()
    assert row["verdict"] == "invalid"
    assert "rank 1 was not struck" in row["diagnosis"]


@pytest.mark.parametrize("place", [{"step": 18.0}, {"point": "forward"}])
def test_a_victim_that_was_held_elsewhere_is_no_receipt(place):
    row = Scene().change("killed", "events", kind("held"), **place).judge()
    assert row["diagnosis"] == "the fault never struck: its point step of step 19 was never reached"


def test_a_receipt_that_does_not_say_how_victims_end_is_invalid():
    def receipt(**more):
        detail = {"fault": "0", "action": "sigkill", "victims": [{"rank": 1, "pid": 101}], **more}
        return Scene().change("killed", "events", kind("fault_fired"), detail=json.dumps(detail)).judge()

    assert receipt(ends_by=[{"signal": 9}])["verdict"] == "equal"
    assert (
        receipt()["diagnosis"] == "the receipt of sigkill does not say how it ends its victims, nor what else it does"
    )
    # The name of the fault says nothing.
    assert receipt(ends_by=[{"signal": 15}])["diagnosis"] == "the fault never struck: rank 1 did not end by sigkill"


@pytest.mark.parametrize(
    ("seen", "verdict"), [({"state": "stopped"}, "equal"), ({"state": "running"}, "invalid"), ({}, "invalid")]
)
def test_a_fault_that_proved_nothing_is_invalid(seen, verdict):
    """A fault that ends nobody has struck if what it does was seen."""
    receipt = {"fault": "0", "victims": [{"rank": 1, "pid": 101}], "ends_by": [], "proves": {"state": "stopped"}}
    row = Scene().change("killed", "events", kind("fault_fired"), detail=json.dumps({**receipt, "seen": seen})).judge()
    assert row["verdict"] == verdict
    assert verdict == "equal" or row["diagnosis"].startswith("the fault never struck: after sigkill state was ")


def test_a_leg_that_was_struck_before_it_had_told_anything_has_no_backend_to_compare():
    scene = Scene(kill_step=2).fingerprint("killed", backend="not told")
    assert scene.judge()["verdict"] == "invalid"
    for table in ("losses", "digests", "ledger"):
        scene.drop("killed", table, lambda frame: frame["rank"] >= 0)
    assert scene.judge()["verdict"] == "equal"


@pytest.mark.parametrize(("others", "surprise"), [(("hung", "equal"), False), (("hung",), True), ((), True)])
def test_only_a_verdict_that_was_named_may_come_out_as_well(others, surprise):
    row = Scene(expect=Expectation("crashed", "chance decides", or_verdict=others)).judge()
    assert (row["verdict"], row["surprise"]) == ("equal", surprise)


@pytest.mark.parametrize(("restored", "surprise"), [(16, False), (12, True), (None, False)])
def test_a_resume_from_another_step_than_predicted_is_a_surprise(restored, surprise):
    row = Scene(expect=Expectation("equal", "saved at 16", restored=restored)).judge()
    assert (row["verdict"], row["surprise"], row["lost_steps"]) == ("equal", surprise, 3)
    assert row["lost_s"] == pytest.approx(103 + 1.9 - (101 + 1.6))


@pytest.mark.parametrize(("reloaded", "verdict"), [((20, 20), "equal"), ((20, 16), "different")])
def test_ranks_that_reload_different_steps_are_different(reloaded, verdict):
    scene = Scene()
    for rank, step in enumerate(reloaded):
        scene.add_event("resumed", "reloaded", rank=rank, step=step)
    row = scene.judge()
    assert row["verdict"] == verdict
    if verdict == "different":
        assert row["diagnosis"].startswith("ranks reloaded different steps: rank 0 → 20, rank 1 → 16")
        assert row["first_step"] == 17


def ended_before(scene, rank, **how):
    """The rank ends at second 50, before every fault."""
    scene.drop("killed", "events", lambda f: (f["kind"] == "exited") & f["detail"].str.contains(f'"of_rank": {rank},'))
    return scene.add_event("killed", "exited", mono=50.0, **({"of_rank": rank, "signal": None, "by": "itself"} | how))


def test_a_planned_victim_that_had_ended_by_itself_is_invalid():
    scene = ended_before(Scene(ranks="all"), 0, status=1)
    receipt = {"fault": "0", "victims": [{"rank": 1, "pid": 101}], "ends_by": [{"signal": 9}]}
    scene.change("killed", "events", kind("fault_fired"), detail=json.dumps(receipt))
    row = scene.judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", "rank 0 had ended before the fault struck")


def test_a_rank_that_failed_before_the_fault_of_another_is_invalid():
    row = ended_before(Scene(), 0, status=1).judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", "rank 0 had ended before the fault struck")


@pytest.mark.parametrize(("signal", "verdict"), [(9, "invalid"), (15, "invalid"), (6, "equal")])
def test_a_survivor_that_somebody_else_killed_is_invalid_and_one_that_aborts_is_not(signal, verdict):
    scene = Scene().drop("killed", "events", lambda f: f["detail"].str.contains('"of_rank": 0,'))
    row = scene.add_event("killed", "exited", of_rank=0, status=None, signal=signal, by="itself").judge()
    assert row["verdict"] == verdict
    if verdict == "invalid":
        assert f"rank 0, which was no victim, ended by signal {signal} (SIG" in row["diagnosis"]


def test_of_several_victims_one_is_held_and_all_must_be_struck():
    scene = Scene(world=4, ranks=[1, 3]).drop("killed", "events", kind("held", 1))
    assert scene.judge()["verdict"] == "equal"
    receipt = json.dumps({"fault": "0", "action": "sigkill", "victims": [{"rank": 3, "pid": 103}]})
    row = scene.change("killed", "events", kind("fault_fired"), detail=receipt).judge()
    assert row["verdict"] == "invalid"
    assert "rank 1 was not struck" in row["diagnosis"]


@pytest.mark.parametrize("how", [{"status": 0}, {"status": None, "signal": 9, "by": "supervisor"},
                                 {"status": None, "signal": 15, "by": "fault"}])  # fmt: skip
def test_a_victim_that_did_not_end_by_the_fault_is_invalid(how):
    scene = Scene().drop("killed", "events", kind("exited"))
    scene.add_event("killed", "exited", of_rank=0, status=1, signal=None, by="itself")
    scene.add_event("killed", "exited", **({"of_rank": 1, "signal": None, "by": "itself"} | how))
    row = scene.judge()
    assert row["verdict"] == "invalid"
    assert row["diagnosis"] == "the fault never struck: rank 1 did not end by sigkill"


def test_a_fault_on_all_ranks_must_end_them_all():
    scene = Scene(world=2, ranks="all")
    scene.drop("killed", "events", lambda f: (f["kind"] == "exited") & f["detail"].str.contains('"of_rank": 0'))
    assert scene.judge()["diagnosis"] == "the fault never struck: rank 0 did not end by sigkill"


def test_a_rank_without_a_resume_receipt_is_invalid():
    row = Scene(world=4).drop("resumed", "events", kind("restored", 2)).judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", "no resume receipt: none from rank 2")


def test_a_resume_receipt_after_the_first_step_is_invalid():
    row = Scene().change("resumed", "events", kind("restored", 1), monotonic=999.0).judge()
    assert row["verdict"] == "invalid"
    assert "it came after the first step on rank 1" in row["diagnosis"]


def test_a_receipt_that_the_steps_belie_is_invalid():
    row = Scene(restored=0).change("resumed", "events", kind("restored"), step=16.0).judge()
    assert row["verdict"] == "invalid"
    assert "the receipt says that step 16 was restored, but the first step done was 1" in row["diagnosis"]


# Agreement


def test_ranks_that_restored_different_steps_are_different():
    row = Scene().change("resumed", "events", kind("restored", 1), step=12.0).judge()
    assert (row["verdict"], row["first_step"]) == ("different", 13)
    assert "ranks restored different steps: rank 0 → 16, rank 1 → 12" in row["diagnosis"]


def test_ranks_that_restored_different_epochs_are_different():
    row = Scene().change("resumed", "events", kind("restored", 1), detail='{"epoch": 0}').judge()
    assert row["verdict"] == "different"
    assert "different epochs: rank 0 → 2, rank 1 → 0" in row["diagnosis"]


@pytest.mark.parametrize("leg", ["reference", "resumed"])
def test_ranks_that_formed_another_group_than_the_cells_are_invalid(leg):
    scene = Scene(world=4).add_event(leg, "group_formed", rank=2, world=1, backend="gloo")
    row = scene.judge()
    assert row["verdict"] == "invalid"
    assert "rank 2 of the re" in row["diagnosis"]
    assert "was in a group of 1 rank, not 4" in row["diagnosis"]


# Told once, and by all


def again(scene, leg, table, where, **values):
    """Tell rows a second time, with other values."""
    frame = getattr(scene.evidence[leg], table)
    return scene._put(leg, table, pd.concat([frame, frame[where(frame)].assign(**values)], ignore_index=True))


@pytest.mark.parametrize("leg", ["reference", "killed", "resumed"])
@pytest.mark.parametrize("bits", [1, bits_at(18)])
def test_a_loss_told_twice_in_one_attempt_is_invalid(leg, bits):
    row = again(Scene(), leg, "losses", steps(18, 18, rank=1), loss_bits=bits).judge()
    assert row["verdict"] == "invalid"
    assert row["diagnosis"].endswith("told twice: the loss of step 18 on rank 1")


def test_an_entry_told_twice_in_one_attempt_is_invalid():
    row = again(Scene(), "resumed", "digests", entry("ema.w", moment="saved", ranks=[1], after=24), order=99).judge()
    assert row["verdict"] == "invalid"
    assert row["diagnosis"] == "the resumed leg told twice: the state entry ema.w (saved, step 24) on rank 1"


def test_a_resume_receipt_told_twice_is_invalid():
    row = Scene().add_event("resumed", "restored", rank=1, mono=301.0, step=16, epoch=2).judge()
    assert row["diagnosis"] == "the resumed leg told twice: the resume receipt of rank 1"


@pytest.mark.parametrize("resume_world", [2, 4])
@pytest.mark.parametrize(("table", "what"), [("losses", "loss of steps 17-24"), ("digests", "state (loaded, step 16)")])
def test_a_rank_of_the_resumed_leg_that_tells_nothing_is_invalid(resume_world, table, what):
    row = Scene(resume_world=resume_world).drop("resumed", table, lambda frame: frame["rank"] == 1).judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", f"rank 1 of the resumed leg told no {what}")


def test_a_rank_that_stops_telling_its_state_at_another_world_is_invalid():
    scene = Scene(world=4, resume_world=2)
    row = scene.drop("resumed", "digests", lambda f: (f["rank"] == 1) & (f["moment"] == "end")).judge()
    assert row["diagnosis"] == "rank 1 of the resumed leg told no state (end, step 24)"


def test_a_trainer_whose_first_rank_alone_tells_its_state_is_judged_by_that():
    scene = Scene(resume_world=4)
    for leg in scene.evidence:
        scene.drop(leg, "digests", lambda frame: frame["rank"] > 0)
    assert scene.judge()["verdict"] == "equal"


def test_at_another_world_an_entry_that_one_rank_has_lost_is_different():
    scene = Scene(world=4, resume_world=2)
    row = scene.drop("resumed", "digests", entry("ema.w", moment="end", ranks=[1])).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 24, "ema.w")


def test_equal_weights_with_another_optimizer_on_one_rank_are_named():
    row = (
        Scene(world=4)
        .change("resumed", "digests", entry("optimizer.exp_avg.w", moment="loaded", ranks=[3]), digest=OTHER)
        .judge()
    )
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 17, "optimizer.exp_avg.w")
    assert "optimizer.exp_avg.w on rank 3 is not that of rank 0; the weights agree" in row["diagnosis"]


def test_streams_of_each_rank_own_need_not_agree():
    assert Scene(world=2, own_rng=True).judge()["verdict"] == "equal"


# Hardware


def test_another_cpu_capability_is_invalid_and_named():
    row = Scene().fingerprint("resumed", cpu_capability="AVX2").judge()
    assert row["verdict"] == "invalid"
    assert row["diagnosis"] == "hardware differs between reference and resumed leg: cpu_capability AVX512 → AVX2"


AVX2 = {"capability": "avx2"}


def scene_on(resumed, **more):
    """A cell whose resumed leg asks for ``resumed`` and has it."""
    names = {"capability": "cpu_capability", "threads": "threads"}
    scene = Scene(resume_hardware=resumed, at_each_step=True, **more)
    return scene.fingerprint("resumed", **{names[name]: str(value).upper() for name, value in resumed.items()})


def other_kernels(scene):
    """From step 17 on the weights differ, and from step 18 on the losses do, by 1 and 3 ULP."""
    scene.change("resumed", "digests", entry("model.w", after=17), digest=OTHER)
    scene.change("resumed", "losses", steps(18, 18), loss_bits=bits_at(18) + 1)
    return scene.change("resumed", "losses", steps(20, 20), loss_bits=bits_at(20) + 3)


def test_hardware_may_change_where_the_cell_changes_it():
    row = scene_on({"threads": 2}).judge()
    assert row["verdict"] == "equal"
    assert "hardware changed on purpose (threads 1 → 2)" in row["comparison"]
    assert (row["ran_on"], row["resumed_on"]) == ("AVX512 kernels, 1 thread", "AVX512 kernels, 2 threads")


def test_hardware_may_change_only_in_what_the_cell_names():
    row = scene_on({"threads": 2}).fingerprint("resumed", threads=2, cpu_model="Other CPU").judge()
    assert row["verdict"] == "invalid"
    assert "hardware differs between reference and resumed leg: cpu_model Example CPU → Other CPU" in row["diagnosis"]


def test_hardware_that_should_change_for_the_resume_may_not_change_before_it():
    row = scene_on({"threads": 2}).fingerprint("twin", threads=2).judge()
    assert row["verdict"] == "invalid"
    assert "the twin did not run on the hardware that was asked for: threads 2 instead of 1" in row["diagnosis"]


@pytest.mark.parametrize("measured", ["AVX512", "AVX2 and AVX512"])
def test_a_leg_that_did_not_get_the_kernels_that_it_asked_for_is_invalid(measured):
    row = scene_on(AVX2).fingerprint("resumed", cpu_capability=measured).judge()
    assert row["verdict"] == "invalid"
    assert (
        f"the resumed leg did not run on the hardware that was asked for: cpu_capability {measured}" in row["diagnosis"]
    )


def test_a_trainer_may_choose_its_own_threads_where_no_hardware_is_named():
    scene = Scene()
    for leg in scene.evidence:
        scene.fingerprint(leg, threads=4)
    assert scene.judge()["verdict"] == "equal"


def test_other_bits_on_other_hardware_are_the_hardwares_if_the_state_was_restored():
    row = other_kernels(scene_on(AVX2)).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 17, "model.w")
    assert (row["first_ulp"], row["max_ulp"]) == (0, 3)
    why = (
        "the state was restored bit for bit, and the hardware is another: cpu_capability AVX512 → AVX2; from step 17 on"
    )
    assert row["diagnosis"].startswith(why)


def test_other_bits_on_the_same_hardware_are_not_put_down_to_it():
    assert "hardware" not in other_kernels(Scene(at_each_step=True)).judge()["diagnosis"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda scene: scene.change("resumed", "digests", entry("rng.torch", moment="loaded"), digest=OTHER),
        lambda scene: scene.drop("resumed", "digests", lambda frame: frame.moment == "loaded"),
        lambda scene: scene.change("resumed", "losses", steps(22, 22), loss_bits=0x7FC00000),
        lambda scene: scene.drop("resumed", "losses", steps(23)),
        lambda scene: scene.drop("resumed", "ledger", steps(19, 19)),
    ],
    ids=["state of the load", "load not told", "NaN", "steps left out", "samples"],
)
def test_what_no_other_kernel_explains_is_not_put_down_to_the_hardware(damage):
    scene = other_kernels(scene_on(AVX2))
    damage(scene)
    row = scene.judge()
    assert row["verdict"] == "different"
    assert "the hardware is another" not in row["diagnosis"]


@pytest.mark.parametrize(
    ("bounds", "surprise"),
    [
        ({"max_ulp": 3, "max_first_ulp": 0}, False),
        ({"max_ulp": 2}, True),
        ({"min_ulp": 3}, False),
        ({"min_ulp": 4}, True),
    ],
)
def test_losses_further_apart_than_predicted_are_a_surprise(bounds, surprise):
    row = other_kernels(scene_on(AVX2, expect=Expectation("different", "other kernels", 17, **bounds))).judge()
    assert (row["verdict"], row["surprise"]) == ("different", surprise)


def test_a_first_loss_further_apart_than_predicted_is_a_surprise_although_all_are_near_enough():
    scene = scene_on(AVX2, expect=Expectation("different", "other kernels", 17, max_ulp=3, max_first_ulp=1))
    row = scene.change("resumed", "losses", steps(17, 17), loss_bits=bits_at(17) + 2).judge()
    assert (row["first_ulp"], row["max_ulp"], row["surprise"]) == (2, 2, True)
    assert row["expected_ulp"] == "at most 3 ULP; at most 1 ULP at the first step"


def test_a_loss_that_is_not_there_is_further_than_any_bound():
    scene = scene_on(AVX2, expect=Expectation("different", "other kernels", 17, max_ulp=3))
    row = other_kernels(scene).drop("resumed", "losses", steps(23)).judge()
    assert (row["verdict"], row["max_ulp"], row["surprise"]) == ("different", None, True)


def test_a_leg_without_a_fingerprint_is_invalid():
    scene = Scene()
    scene.evidence["killed"] = dataclasses.replace(scene.evidence["killed"], provenance={})
    assert scene.judge()["diagnosis"].startswith("no hardware fingerprint of the killed leg")


# Repeatability


def test_two_references_with_other_losses_are_unrepeatable():
    row = Scene().change("twin", "losses", steps(9), loss_bits=bits_at(3)).judge()
    assert (row["verdict"], row["first_step"]) == ("unrepeatable", 9)


def test_two_references_with_other_state_are_unrepeatable_although_every_loss_agrees():
    row = Scene().change("twin", "digests", entry("ema.w", after=8), digest=OTHER).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("unrepeatable", 8, "ema.w")


def test_a_killed_leg_that_leaves_the_reference_before_its_fault_is_unrepeatable():
    row = Scene().change("killed", "losses", steps(7), loss_bits=bits_at(1)).judge()
    assert (row["verdict"], row["first_step"]) == ("unrepeatable", 7)
    assert "before the fault already" in row["diagnosis"]


def test_a_victim_that_died_before_it_told_its_last_step_is_no_difference():
    assert Scene().drop("killed", "losses", steps(19, rank=1)).judge()["verdict"] == "equal"


@pytest.mark.parametrize("leg", ["twin", "killed"])
def test_uninterrupted_runs_with_another_learning_rate_are_unrepeatable(leg):
    row = Scene().change(leg, "losses", steps(9), lr=0.5).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("unrepeatable", 9, "lr")


def test_legs_are_let_go_after_the_last_cell_that_uses_them(monkeypatch):
    kept = []
    original = verdicts.LegView
    monkeypatch.setattr(verdicts, "LegView", lambda one: kept.append(weakref.ref(view := original(one))) or view)
    assert Scene().judge()["verdict"] == "equal"
    gc.collect()
    assert [view() for view in kept] == [None] * 4


# Losses


def test_one_ulp_in_one_loss_is_different():
    row = Scene().change("resumed", "losses", steps(21, 21), loss_bits=bits_at(21) + 1).judge()
    assert (row["verdict"], row["first_step"], row["first_loss_step"]) == ("different", 21, 21)
    assert (row["max_ulp"], row["losses_different"], row["steps_compared"]) == (1, 1, 8)
    assert "losses differ from step 21 on (1 of 8, up to 1 ULP)" in row["diagnosis"]
    assert "every state digest agrees" in row["diagnosis"]


def test_a_loss_of_another_dtype_is_different_although_its_bits_agree():
    row = Scene().change("resumed", "losses", steps(17), loss_dtype="float64").judge()
    assert (row["verdict"], row["first_step"], row["max_ulp"]) == ("different", 17, None)


def test_a_nan_where_the_reference_has_a_number_is_the_largest_distance():
    row = Scene().change("resumed", "losses", steps(22), loss_bits=0x7FC00000).judge()
    assert (row["verdict"], row["max_ulp"]) == ("different", MAX_ULP)
    assert "a NaN against a number" in row["diagnosis"]


def test_the_same_nan_on_both_sides_is_equal_and_said():
    scene = Scene()
    for leg in scene.evidence:
        scene.change(leg, "losses", steps(18), loss_bits=0x7FC00000)
    row = scene.judge()
    assert row["verdict"] == "equal"
    assert "7 of the compared losses are NaN" in row["diagnosis"]


def test_two_zeros_differ_by_their_sign():
    scene = Scene()
    for leg in scene.evidence:
        scene.change(leg, "losses", steps(18, 18), loss_bits=0)
    row = scene.change("resumed", "losses", steps(18, 18), loss_bits=-(2**31)).judge()
    assert (row["verdict"], row["first_step"], row["max_ulp"]) == ("different", 18, 0)
    assert "(1 of 8, by the sign of zero)" in row["diagnosis"]


def test_without_losses_the_state_alone_is_not_called_the_whole():
    scene = Scene()
    for leg in scene.evidence:
        scene.drop(leg, "losses", steps(0))
    row = scene.judge()
    assert row["verdict"] == "equal"
    assert "no loss told: not compared" in row["diagnosis"]


def test_a_resume_at_the_end_says_that_no_loss_was_left_to_compare():
    row = Scene(steps=20, kill_step=20, point="saved").judge()
    assert row["verdict"] == "equal"
    assert "no step was left to do after step 20: no loss compared" in row["diagnosis"]


# Beside the losses


@pytest.mark.parametrize(("column", "name"), [("grad_norm_bits", "grad_norm"), ("lr", "lr")])
@pytest.mark.parametrize("resume_world", [2, 4])
def test_another_gradient_norm_or_learning_rate_is_different_although_every_loss_agrees(column, name, resume_world):
    row = Scene(resume_world=resume_world).change("resumed", "losses", steps(22), **{column: 7}).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 22, name)
    assert (
        f"{name} differs from step 22 on; every loss agrees (8 losses); every state digest agrees" in row["diagnosis"]
    )
    assert "grad_norm and lr of steps 17-24" in row["comparison"]


@pytest.mark.parametrize(("step", "state"), [(24, "ema.w"), (23, "lr")])
def test_the_first_state_is_a_number_beside_the_loss_only_if_no_entry_differs_before(step, state):
    scene = Scene().change("resumed", "digests", entry("ema.w", after=24), digest=OTHER)
    row = scene.change("resumed", "losses", steps(step), lr=7.0).judge()
    assert (row["first_step"], row["first_state"]) == (step, state)


def test_a_learning_rate_that_one_leg_does_not_tell_is_not_compared_and_said():
    scene = Scene().change("resumed", "losses", lr=np.nan)
    row = scene.judge()
    assert row["verdict"] == "equal"
    assert "the resumed leg told no lr: not compared" in row["diagnosis"]
    assert "grad_norm of steps 17-24" in row["comparison"]


def test_a_learning_rate_missing_in_one_step_is_different():
    row = Scene().change("resumed", "losses", steps(23, 23), lr=np.nan).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 23, "lr")


def test_a_resumed_leg_that_stops_early_is_different():
    row = Scene(digests=False).drop("resumed", "losses", steps(23)).judge()
    assert (row["verdict"], row["first_step"]) == ("different", 23)
    assert "stopped after step 22: steps 23-24 missing" in row["diagnosis"]


def test_a_resumed_leg_that_exits_well_and_does_nothing_is_different():
    scene = Scene(digests=False).drop("resumed", "losses", steps(0)).drop("resumed", "events", kind("first_step"))
    row = scene.judge()
    assert row["verdict"] == "different"
    assert "did no step" in row["diagnosis"]


def test_steps_beyond_the_end_of_the_reference_are_different():
    scene = Scene(digests=False)
    for leg in ("reference", "twin"):
        scene.drop(leg, "losses", steps(24))
    assert "did step 24, which the reference did not" in scene.judge()["diagnosis"]


@pytest.mark.parametrize("resume_world", [2, 4])
def test_ranks_that_tell_different_losses_of_one_step_are_named(resume_world):
    scene = Scene(world=2, resume_world=resume_world)
    row = scene.change("resumed", "losses", steps(20, 20, rank=1), loss_bits=bits_at(20) + 2).judge()
    assert (row["verdict"], row["first_step"]) == ("different", 20)
    assert "its ranks told different losses of step 20" in row["diagnosis"]


def test_a_step_done_twice_must_equal_its_first_execution():
    # Only the handover control may excuse it; here nothing may.
    # A survivor did one more step than the victim.
    scene = Scene(world=2, resume_world=4, kill_step=19)
    again(scene, "killed", "losses", steps(19, 19, rank=0), step=20, loss_bits=bits_at(20) + 1)
    row = scene.judge()
    assert (row["verdict"], row["first_step"]) == ("different", 20)
    assert "step 20 done twice: not as at the first execution" in row["diagnosis"]


def test_a_learning_rate_of_a_step_done_twice_must_equal_that_of_its_first_execution():
    scene = Scene(kill_step=19)
    again(scene, "killed", "losses", steps(19, 19, rank=0), step=20, loss_bits=bits_at(20), lr=7.0)
    row = scene.judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 20, "lr")


def test_beside_the_handover_control_the_distance_to_the_run_that_stays_is_told():
    scene = Scene(world=4, resume_world=2, settings={"reduction": "allreduce"})
    row = scene.judge()
    assert (row["verdict"], row["ulp_to_original"]) == ("equal", 0)
    bits = scene.evidence["original"].losses.set_index(["step", "rank"]).loss_bits
    scene.change("original", "losses", lambda frame: frame.step == 20, loss_bits=bits[20, 0] + 5)
    row = scene.judge()
    assert (row["verdict"], row["ulp_to_original"]) == ("equal", 5)
    assert "up to 5 ULP from those of the run that stays on the topology" in row["diagnosis"]
    assert Scene().judge()["ulp_to_original"] is None


def test_against_the_handover_control_the_first_execution_is_no_measure():
    scene = Scene(world=2, resume_world=4, settings={"reduction": "allreduce"})
    row = scene.change("killed", "losses", steps(17), loss_bits=bits_at(1)).judge()
    assert row["verdict"] == "equal"
    assert "the first execution is no measure" in row["diagnosis"]


# State


@pytest.mark.parametrize(
    ("name", "taught"),
    [
        ("optimizer.exp_avg.w", "optimizer moments were lost"),
        ("schedule.last_step", "schedule was restarted"),
        ("ema.w", "averaged weights"),
        ("sampler.epoch", "another shuffle is replayed"),
        ("rng.torch", "random number generator was not restored"),
        ("best.loss", "best metric was forgotten"),
    ],
)
def test_state_lost_at_the_load_is_named_and_explained_although_every_loss_agrees(name, taught):
    row = Scene().change("resumed", "digests", entry(name), digest=OTHER).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 17, name)
    assert taught in row["diagnosis"]
    assert "every loss agrees (8 losses)" in row["diagnosis"]


def test_a_lost_stream_is_named_with_its_ranks():
    scene = Scene(world=4, own_rng=True)
    scene.change("resumed", "digests", entry("rng.torch", ranks=[1, 2, 3]), digest=OTHER)
    scene.change("resumed", "digests", entry("best.loss", moment="loaded"), digest=OTHER)
    row = scene.judge()
    assert "rng.torch on ranks 1-3, right after the load (and 1 more entry)" in row["diagnosis"]
    assert "sample ids equal" in row["diagnosis"]


def test_the_first_state_is_the_first_in_the_trainers_own_order():
    scene = Scene()
    for name in ("step", "best.loss", "rng.torch"):
        scene.change("resumed", "digests", entry(name, after=20), digest=OTHER)
    row = scene.judge()
    assert (row["first_step"], row["first_state"]) == (20, "rng.torch")


def test_state_that_goes_wrong_after_the_load_counts_from_its_own_step():
    row = Scene(at_each_step=True).change("resumed", "digests", entry("model.b", after=18), digest=OTHER).judge()
    assert (row["first_step"], row["first_state"]) == (18, "model.b")
    assert "after step 18" in row["diagnosis"]


def test_state_that_differs_only_at_the_end_is_seen():
    row = Scene().change("resumed", "digests", entry("best.loss", moment="end"), digest=OTHER).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 24, "best.loss")


@pytest.mark.parametrize("leg", ["resumed", "killed"])
def test_an_entry_that_only_one_side_has_is_a_difference(leg):
    where = entry("ema.w", moment="loaded" if leg == "resumed" else "saved", after=16)
    row = Scene().drop(leg, "digests", where).judge()
    assert row["verdict"] in ("different", "unrepeatable")
    assert row["first_state"] == "ema.w"


def test_equal_bytes_of_another_shape_are_another_state():
    row = Scene().change("resumed", "digests", entry("model.w"), shape="2x2").judge()
    assert (row["verdict"], row["first_state"]) == ("different", "model.w")


def test_a_save_that_was_renamed_but_not_recorded_is_compared_with_the_references():
    scene = Scene(kill_step=8, point="save.pointer", restored=8)
    row = scene.change("resumed", "digests", entry("ema.w", moment="loaded"), digest=OTHER).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 9, "ema.w")


def test_at_another_world_replicated_state_is_compared_and_the_ranks_own_is_counted():
    scene = Scene(world=4, resume_world=2, own_rng=True)
    assert "2 entries of each rank's own can't be compared" in scene.judge()["diagnosis"]
    row = scene.change("resumed", "digests", entry("model.w", after=20), digest=OTHER).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 20, "model.w")


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("wrong", [digest_of(number) for number in range(4)])
def test_at_another_world_weights_that_drift_apart_are_not_taken_for_the_ranks_own(world, wrong):
    scene = Scene(world=world, resume_world=2)
    row = scene.change("resumed", "digests", entry("model.w", ranks=[1], after=20), digest=wrong).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 20, "model.w")


def test_ranks_killed_before_they_told_their_state_at_a_save_are_no_difference():
    scene = Scene(kill_step=8, point="saved", ranks="all", own_rng=True)
    scene.drop("killed", "digests", lambda f: (f["moment"] == "saved") & (f["step"] == 8) & (f["rank"] == 0))
    assert scene.judge()["verdict"] == "equal"
    row = scene.change("resumed", "digests", entry("ema.w", moment="loaded", ranks=[0, 1]), digest=OTHER).judge()
    assert (row["verdict"], row["first_step"], row["first_state"]) == ("different", 9, "ema.w")


# Data


def replay(frame):
    """Epoch 2 in the order of epoch 0."""
    earlier = Scene().evidence["reference"].ledger.set_index(["rank", "step"])["sample_ids"]
    ids = [earlier[rank, (step - 1) % 8 + 1] for rank, step in zip(frame["rank"], frame["step"], strict=True)]
    return frame.assign(sample_ids=ids)


def test_a_replayed_epoch_is_different_although_losses_and_state_agree():
    scene = Scene()
    scene._put("resumed", "ledger", replay(scene.evidence["resumed"].ledger))
    row = scene.judge()
    assert (row["verdict"], row["samples_equal"]) == ("different", False)
    assert "each sample is used as often as it should be, but in other steps" in row["diagnosis"]


def test_samples_used_twice_in_an_epoch_are_counted():
    scene = Scene()
    ledger = scene.evidence["resumed"].ledger
    last, before = (ledger["step"] == 24).to_numpy(), (ledger["step"] == 23).to_numpy()
    ids = ledger["sample_ids"].to_numpy(object).copy()
    ids[last] = ids[before]
    scene._put("resumed", "ledger", ledger.assign(sample_ids=ids))
    row = scene.judge()
    assert (row["verdict"], row["first_step"]) == ("different", 24)
    assert "8 samples of epoch 2 used too often and 8 samples of epoch 2 never used" in row["diagnosis"]


def test_another_world_may_share_out_the_same_samples_in_another_way():
    assert Scene(world=1, resume_world=4).judge()["samples_equal"] is True


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("count", "what scales with the number of ranks was not computed anew: {} samples a rank on 2 ranks as on 4"),
        ("position", "keyed by its position: rank 1 begins on 2 ranks as on 4 with the same samples"),
        ("lost", "samples differ from step 17 on"),
    ],
)
def test_the_rule_of_a_changing_world_that_was_broken_is_named(how, words):
    scene = Scene(world=4, resume_world=2)
    before = scene.evidence["killed"].ledger.set_index(["step", "rank"]).sample_ids
    frame = scene.evidence["resumed"].ledger.copy()
    each = len(before[17, 0])

    def dealt(row):
        if row.step != 17:
            return row.sample_ids
        mine = list(before[17, row["rank"]])
        return {"count": mine, "position": [*mine, *before[17, row["rank"] + 1]], "lost": row.sample_ids[:-1]}[how]

    frame["sample_ids"] = frame.apply(dealt, axis=1)
    row = scene._put("resumed", "ledger", frame).judge()
    assert (row["verdict"], row["first_step"]) == ("different", 17)
    assert words.format(each) in row["diagnosis"]
    named = "computed anew" in row["diagnosis"] or "keyed by" in row["diagnosis"]
    assert named == (how != "lost")


def test_it_is_said_what_the_samples_were_checked_for():
    assert "over all ranks, each step the reference's multiset, none twice in an epoch" in Scene().judge()["comparison"]


def test_without_epochs_nothing_is_said_of_samples_used_again():
    scene = Scene()
    for leg in scene.evidence:
        scene.change(leg, "ledger", epoch=-1)
    row = scene.judge()
    assert row["verdict"] == "equal"
    assert "epoch" not in row["diagnosis"]
    assert "each step the reference's multiset, no epoch told" in row["comparison"]


def test_the_wrong_epoch_on_the_right_samples_is_different():
    row = Scene().change("resumed", "ledger", steps(17), epoch=0).judge()
    assert (row["verdict"], row["first_step"], row["samples_equal"]) == ("different", 17, False)


def test_a_reference_that_repeats_samples_itself_is_followed_and_said():
    scene = Scene()
    for leg in scene.evidence:
        ledger = scene.evidence[leg].ledger
        ids = [np.append(one, one[0]) for one in ledger["sample_ids"]]
        scene._put(leg, "ledger", ledger.assign(sample_ids=ids))
    row = scene.judge()
    assert row["verdict"] == "equal"
    assert "the reference itself uses 48 samples again" in row["diagnosis"]
    assert "in an epoch each as often as there" in row["comparison"]


# Exits


@pytest.mark.parametrize("leg", ["reference", "twin", "killed", "resumed"])
def test_a_leg_that_cannot_run_here_is_not_run_with_its_reason_and_no_surprise(leg):
    row = Scene().not_run(leg, "no CUDA device").judge()
    assert (row["verdict"], row["diagnosis"], row["surprise"]) == ("not-run", "no CUDA device", False)


def fail(scene, leg, text="boom"):
    scene.drop(leg, "events", kind("exited"))
    scene.add_event(leg, "error", rank=1, mono=310.0, type="RuntimeError", text=text)
    scene.add_event(leg, "error", rank=0, mono=311.0, type="RuntimeError", text="Connection closed by peer")
    for rank in (0, 1):
        scene.add_event(leg, "exited", of_rank=rank, status=1, signal=None, by="itself")
    return scene


@pytest.mark.parametrize("leg", ["reference", "twin", "resumed"])
def test_a_leg_that_should_have_run_and_failed_is_crashed_with_its_first_error(leg):
    row = fail(Scene(), leg, "Missing key(s) in state_dict").judge()
    assert row["verdict"] == "crashed"
    assert "crashed: RuntimeError: Missing key(s) in state_dict (rank 1); its last step was 24" in row["diagnosis"]


def test_a_signal_that_nobody_sent_comes_before_the_errors_of_the_peers():
    scene = fail(Scene(), "resumed")
    scene.change("resumed", "events", lambda f: f["detail"].str.contains('"of_rank": 1, "status": 1'),
                 detail=json.dumps({"of_rank": 1, "status": None, "signal": 11, "by": "itself"}))  # fmt: skip
    assert "rank 1 ended by signal 11 (SIGSEGV)" in scene.judge()["diagnosis"]


@pytest.mark.parametrize("leg", ["reference", "twin", "resumed"])
def test_a_rank_that_somebody_killed_is_a_crash_by_that_signal(leg):
    scene = refuse(Scene()) if leg == "resumed" else fail(Scene(), leg)
    scene.drop(leg, "events", lambda f: f["detail"].str.contains('"of_rank": 1, "status"'))
    row = scene.add_event(leg, "exited", of_rank=1, status=None, signal=9, by="itself").judge()
    assert row["verdict"] == "crashed"
    assert "crashed: rank 1 ended by signal 9 (SIGKILL)" in row["diagnosis"]


def test_a_killed_leg_that_failed_before_its_fault_is_crashed():
    scene = Scene().drop("killed", "events", kind("held")).drop("killed", "events", kind("fault_fired"))
    row = fail(scene, "killed").judge()
    assert row["verdict"] == "crashed"
    assert "before its fault could strike" in row["diagnosis"]


ENDED_BY_US = {"status": None, "signal": 9, "by": "supervisor"}


@pytest.mark.parametrize("leg", ["reference", "resumed"])
def test_a_leg_that_ran_into_the_deadline_is_hung(leg):
    row = exits(Scene(), leg, **ENDED_BY_US).add_event(leg, "hang_detected", seconds=60).judge()
    assert row["verdict"] == "hung"
    assert "hung: ranks 0-1 had to be ended; its last step was 24" in row["diagnosis"]


def test_ranks_that_wait_for_a_failed_one_do_not_make_a_crash_a_hang():
    scene = Scene(world=2).drop("resumed", "events", kind("exited"))
    scene.add_event("resumed", "error", rank=1, mono=310.0, type="ValueError", text="boom")
    scene.add_event("resumed", "exited", of_rank=1, status=1, signal=None, by="itself")
    scene.add_event("resumed", "exited", of_rank=0, **ENDED_BY_US).add_event("resumed", "hang_detected", seconds=60)
    row = scene.judge()
    assert row["verdict"] == "crashed"
    assert "ValueError: boom (rank 1); rank 0 waited for it and had to be ended" in row["diagnosis"]


def test_a_hang_of_ranks_that_restored_different_steps_names_its_cause():
    scene = Scene().change("resumed", "events", kind("restored", 1), step=12.0)
    row = exits(scene, "resumed", **ENDED_BY_US).judge()
    assert row["verdict"] == "hung"
    assert "restored different steps: rank 0 → 16, rank 1 → 12" in row["diagnosis"]


def test_survivors_that_hang_after_the_fault_are_mentioned_and_the_resume_is_judged():
    scene = Scene().drop("killed", "events", lambda f: f["detail"].str.contains('"of_rank": 0'))
    scene.add_event("killed", "exited", of_rank=0, **ENDED_BY_US)
    row = scene.add_event("killed", "hang_detected", mono=103.0 + 1.9 + 15, seconds=60).judge()
    assert row["verdict"] == "equal"
    assert "rank 0 had not noticed the loss after 15 s and had to be ended" in row["diagnosis"]


def refuse(scene):
    for table in ("losses", "ledger", "digests"):
        scene._put("resumed", table, getattr(scene.evidence["resumed"], table).iloc[:0])
    for name in ("restored", "first_step", "saved", "finished"):
        scene.drop("resumed", "events", kind(name))
    fail(scene, "resumed")
    return scene.add_event("resumed", "refused", rank=0, mono=309.0, reason="saved at world 2, started at world 4")


def test_a_clear_error_before_any_step_is_refused():
    row = refuse(Scene(expect=Expectation("refused", "another world"))).judge()
    assert (row["verdict"], row["surprise"]) == ("refused", False)
    assert row["diagnosis"] == "the resumed leg refused on rank 0: saved at world 2, started at world 4"


def test_a_refusal_after_some_steps_is_crashed():
    scene = fail(Scene(), "resumed").add_event("resumed", "refused", rank=0, mono=309.0, reason="late")
    assert scene.judge()["verdict"] == "crashed"


def test_a_refusal_with_exit_status_0_is_not_refused():
    scene = exits(refuse(Scene()), "resumed", status=0)
    assert scene.judge()["verdict"] == "invalid"


def test_a_leg_whose_end_nobody_recorded_is_invalid():
    row = Scene(world=2).drop("resumed", "events", kind("exited")).judge()
    assert (row["verdict"], row["diagnosis"]) == ("invalid", "no record of how ranks 0-1 of the resumed leg ended")


# Times and attempts


def test_detection_and_restart_are_timed_on_the_monotonic_clock():
    row = Scene().judge()
    assert (row["detect_s"], row["restart_s"]) == pytest.approx((0.25, 1.5))
    assert Scene(world=1).judge()["detect_s"] is None


def test_compilation_is_told_apart_where_a_trainer_tells_it():
    assert Scene().judge()["compile_s"] is None
    scene = Scene()
    for rank, seconds in enumerate((2.5, 3.5)):
        took = {"step": 4.0, "compiled_since_start": seconds}
        scene = scene.add_event("resumed", "note", rank=rank, step=5, text="compile", seconds=took)
    assert scene.judge()["compile_s"] == 3.5


def test_of_a_step_that_two_attempts_did_the_last_one_counts():
    scene = Scene()
    for table in ("losses", "ledger", "digests"):
        first = getattr(scene.evidence["resumed"], table)
        wrong = {"losses": {"loss_bits": 1}, "ledger": {"epoch": 7}, "digests": {"digest": OTHER}}[table]
        again = first.assign(attempt=1)
        scene._put("resumed", table, pd.concat([first.assign(**wrong), again], ignore_index=True))
    assert scene.judge()["verdict"] == "equal"


# Surprise


@pytest.mark.parametrize(
    ("expect", "got", "surprise"),
    [
        (("equal", None, None), ("equal", None, None), False),
        (("equal", None, None), ("different", 17, "rng.torch"), True),
        (("different", None, None), ("equal", None, None), True),
        (("different", 17, "rng.torch"), ("different", 17, "rng.torch"), False),
        (("different", 17, "rng.*"), ("different", 17, "rng.torch"), False),
        (("different", 17, "rng.*"), ("different", 17, "ema.w"), True),
        (("different", 17, "rng.*"), ("different", 17, None), True),
        (("different", 17, "rng.torch"), ("different", 18, "rng.torch"), True),
        (("different", None, None), ("different", 3, "ema.w"), False),
        (("equal", None, None), ("not-run", None, None), False),
    ],
)
def test_a_surprise_is_a_failed_prediction_in_either_direction(expect, got, surprise):
    verdict, step, state = expect
    assert verdicts.is_surprise(Expectation(verdict, "", step, state), *got, "some diagnosis") is surprise


def test_invalid_for_another_reason_than_the_predicted_one_is_a_surprise():
    expect = Expectation("invalid", "", says="the fault never struck")
    assert not verdicts.is_surprise(
        expect, "invalid", None, None, "the fault never struck: its point was never reached"
    )
    assert verdicts.is_surprise(
        expect, "invalid", None, None, "silent restart from scratch although step 16 was committed"
    )


# Whole experiments


def experiment_of(scenes, claims=()):
    return SimpleNamespace(name="kill_resume", cells=tuple(scene.cell for scene in scenes), claims=tuple(claims))


def lay_out(runs, scenes):
    for scene in scenes:
        for one in scene.evidence.values():
            folder = runs / one.leg_id
            folder.mkdir(parents=True, exist_ok=True)
            for table in evidence.TABLES:
                rows = getattr(one, table)
                evidence.write_table(folder / f"{table}.parquet", table, rows)
            evidence.write_json(folder / "leg.json", one.spec)
            evidence.write_json(folder / "provenance.json", one.provenance)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    lost = Scene(resume_world=4, resume_settings={"forget": "ema"}, control="ema lost",
                 expect=Expectation("different", "x", 17, "ema.*"))  # fmt: skip
    lost.change("resumed", "digests", entry("ema.w"), digest=OTHER)
    scenes = [
        Scene(),
        Scene(kill_step=2),
        Scene(resume_world=1),
        lost,
        Scene(world=4).not_run("resumed", "no CUDA device"),
    ]
    claims = [
        SimpleNamespace(text="Same world.", cells=(scenes[0].cell.id, scenes[1].cell.id)),
        SimpleNamespace(text="Four ranks.", cells=(scenes[4].cell.id,)),
    ]
    experiment = experiment_of(scenes, claims)
    lay_out(runs, scenes)
    return experiment, verdicts.judge_experiment(experiment, runs), runs


def test_an_experiment_is_judged_from_its_files_with_one_row_a_cell_and_a_column_an_axis(judged):
    experiment, table, _ = judged
    assert list(table["cell"]) == [cell.id for cell in experiment.cells]
    assert list(table["verdict"]) == ["equal"] * 3 + ["different", "not-run"]
    assert not table["surprise"].any()
    assert list(table["resume_world"]) == [2, 2, 1, 4, 4]
    assert table["resume_trainer.forget"].isna().sum() == 4


def test_a_leg_is_read_once_however_many_cells_use_it(judged, monkeypatch):
    experiment, _, folder = judged
    read = []
    original = evidence.read
    monkeypatch.setattr(evidence, "read", lambda runs, leg: read.append(leg) or original(runs, leg))
    verdicts.judge_experiment(experiment, folder)
    assert sorted(read) == sorted({leg.id for cell in experiment.cells for leg in cell.legs})


def test_verdicts_survive_parquet_with_whole_numbers_and_their_axes(judged, tmp_path):
    experiment, table, _ = judged
    verdicts.write(tmp_path, experiment, table, {"provenance": "x"})
    again = evidence.read_table(tmp_path / "verdicts.parquet", "verdicts")
    assert list(again.columns) == list(table.columns)
    assert list(again["kill_step"]) == [19, 2, 19, 19, 19]
    text = (tmp_path / "verdicts.tsv").read_text()
    assert "\t17\tema.w\t" in text
    assert (tmp_path / "findings.tsv").read_text().splitlines()[1].split("\t") == ["Same world.", "yes", "2 of 2"]


def test_a_claim_holds_if_every_cell_came_out_as_predicted(judged):
    experiment, table, _ = judged
    assert list(verdicts.findings(experiment, table)["holds"]) == ["yes", "not-run"]
    found = verdicts.findings(experiment, table.assign(surprise=table["cell"] == experiment.cells[1].id))
    assert found.loc[0, "holds"] == "no"
    assert found.loc[0, "cells"] == f"1 of 2; not: {experiment.cells[1].id}"
    assert found.loc[1, "cells"] == "0 of 0; 1 not run"


def test_where_a_budget_has_left_runs_out_the_cells_that_lack_one_are_not_run(judged, tmp_path):
    experiment, whole, folder = judged
    shutil.copytree(folder, tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / experiment.cells[1].resumed.id)
    table = verdicts.judge_experiment(experiment, tmp_path / "runs", partly=True)
    assert list(table["verdict"]) == ["equal", "not-run", "equal", "different", "not-run"]
    assert list(table["diagnosis"])[1::3] == ["budget", "no CUDA device"]
    assert not table["surprise"].any()
    assert table.drop(index=1).equals(whole.drop(index=1))
    assert list(verdicts.findings(experiment, table)["cells"]) == ["1 of 1; 1 not run", "0 of 0; 1 not run"]


def test_missing_evidence_is_one_line_that_names_the_file(judged, tmp_path):
    experiment, _, runs = judged
    shutil.copytree(runs, tmp_path / "runs")
    gone = tmp_path / "runs" / experiment.cells[0].killed.id / "losses.parquet"
    gone.unlink()
    with pytest.raises(EvidenceError, match=r"losses\.parquet: is missing") as caught:
        verdicts.judge_experiment(experiment, tmp_path / "runs")
    assert "\n" not in str(caught.value)


def test_a_malformed_digest_is_one_line_that_names_the_leg():
    scene = Scene().change("resumed", "digests", entry(STATE[0]), digest="abc")
    with pytest.raises(EvidenceError, match=r"resume-gloo-.*digests\.parquet: .*; remove"):
        scene.judge()


def test_a_cell_has_every_column_of_the_schema():
    row = Scene().judge()
    assert list(row)[: len(evidence.columns("verdicts"))] == list(evidence.columns("verdicts"))
    assert row["kill_step"] == 19
