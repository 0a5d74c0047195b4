"""Hand-made experiments, verdicts and evidence of any size, for the tests of the page and its figures."""

from __future__ import annotations

from itertools import product
from typing import Any

import pandas as pd
from takeback.experiment import Experiment
from takeback.leg import Leg
from takeback.matrix import Cell, Expectation

STEPS = 24
EQUAL = Expectation("equal", "the whole state is restored")
CONTROLS = [
    ("rng not restored", "rng", Expectation("different", "dropout starts again", 17, "rng.torch")),
    (
        "optimizer moments dropped",
        "optimizer",
        Expectation("different", "AdamW starts cold", 17, "optimizer.exp_avg.*"),
    ),
    ("sampler epoch not restored", "sampler", Expectation("different", "the first shuffle", 17, "sampler.epoch")),
    ("schedule restarted", "schedule", Expectation("different", "warm-up runs twice", 17, "schedule.*")),
    ("averaged weights not restored", "ema", Expectation("different", "the losses can't see it", 16, "ema.*")),
    ("silent restart from scratch", "checkpoint", Expectation("invalid", "a save was there and was not used")),
    ("a fault that never fires", "nothing", Expectation("invalid", "no receipt of the fault")),
]


def cell(axes: dict[str, Any], control: str | None = None, forget: str = "none", expect: Expectation = EQUAL) -> Cell:
    """One cell; the axes are backend, world, kill_step, point, fault, resume_world and any ``trainer.NAME``."""
    settings = {key.removeprefix("trainer."): value for key, value in axes.items() if key.startswith("trainer.")}
    world, resume = axes["world"], axes["resume_world"]
    strike = {"id": "0", "kind": axes["fault"], "point": axes["point"], "step": axes["kill_step"], "attempt": 0}

    def leg(world: int, more: dict[str, str] | None = None, **kind: Any) -> Leg:
        return Leg({"command": [], "settings": settings | (more or {})}, axes["backend"], world, **kind)

    killed = leg(world, faults=(strike,))
    return Cell(
        id="-".join(map(str, axes.values())) + (f"-forget={forget}" if control else ""),
        control=control,
        axes=axes,
        reference=leg(world),
        twin=leg(world, repeat=1),
        lives=(killed, leg(resume, {"forget": forget}, parent=killed)),
        expect=expect,
        against="same topology" if world == resume else "changed topology, fixed-order reduction",
    )


def experiment(
    backends=("gloo",),
    worlds=(1, 2, 4),
    kills=((2, "step"), (6, "step"), (8, "saved"), (19, "step")),
    faults=("sigkill",),
    controls: bool = True,
    **extra: Any,
) -> Experiment:
    """An experiment over the product of these axes and of ``extra`` ones, with the usual negative controls."""
    names = ("backend", "world", "resume_world", "kill_step", "point", "fault", *extra)
    values = (
        (b, w, r, *kill, f, *more)
        for b, w, r, kill, f, *more in product(backends, worlds, worlds, kills, faults, *extra.values())
    )
    cells = [cell(dict(zip(names, one, strict=True))) for one in values]
    if controls:
        axes = dict(zip(names, (backends[0], 2, 2, 19, "step", "sigkill"), strict=False))
        cells += [cell(axes, title, forget, expect) for title, forget, expect in CONTROLS]
    return Experiment(
        name="kill_resume",
        title="Kill and resume",
        question="If a training run is killed and comes back on another number of ranks, is it still the same run?",
        trainer={"command": [], "settings": {}},
        cells=tuple(cells),
        claims=(),
        digest="feedc0de12345678",
    )


def verdicts(asked: Experiment, wrong: dict[str, str] | None = None, absent: str | None = "nccl") -> pd.DataFrame:
    """The verdicts as predicted, but for ``wrong`` (cell id → verdict) and the backend that is ``absent``."""
    wrong = wrong or {}
    rows = []
    for number, one in enumerate(asked.cells):
        axes, expect = one.axes, one.expect
        verdict = "not-run" if axes["backend"] == absent else wrong.get(one.id, expect.verdict)
        ran = verdict != "not-run"
        restored = restored_step(axes["kill_step"], axes["point"])
        surprise = ran and verdict != expect.verdict
        first, state = (17, "rng.torch") if surprise and verdict == "different" else (None, None)
        if ran and not surprise:
            first, state = expect.first_step, (expect.first_state or "").replace("*", "wte.weight") or None
        rows.append(
            {
                "cell": one.id,
                "control": one.control,
                "verdict": verdict,
                "expected": expect.verdict,
                "surprise": surprise,
                "first_step": first,
                "first_state": state,
                "max_ulp": None if not ran else 0 if verdict == "equal" else 4711,
                "first_ulp": None if not ran else 0 if verdict == "equal" else 4,
                "ulp_to_original": None,
                "diagnosis": _diagnosis(verdict, first, state),
                "comparison": f"{one.against}, {axes['backend']}: resumed leg "
                f"(world {axes['resume_world']}) against the "
                f"uninterrupted reference (world {axes['world']}): losses of steps {restored + 1}-24 as float32 "
                f"bits; {(24 - restored) // 4 * 180:,} state digests by name; samples of "
                f"{24 - restored} steps over all ranks"
                if ran
                else "nothing was compared",
                "expected_first_step": expect.first_step,
                "expected_first_state": expect.first_state,
                "expected_restored_step": expect.restored,
                "expected_sees": expect.sees,
                "expected_ulp": None,
                "because": expect.because,
                "restored_step": restored if ran else None,
                "committed_step": restored if ran else None,
                "steps_compared": (24 - restored) if ran else 0,
                "losses_different": 0 if first is None else 25 - first,
                "first_loss_step": first,
                "states_compared": 900 if ran else 0,
                "states_different": 0 if first is None else 12,
                "samples_equal": True if ran else None,
                "ran_on": "AVX512 kernels, 1 thread" if ran else None,
                "resumed_on": "AVX512 kernels, 1 thread" if ran else None,
                "detect_s": 0.02 + number % 7 / 100 if ran else None,
                "survivors_saw": "RuntimeError: Connection closed by peer" if ran else None,
                "names_peer": False if ran else None,
                "blames_other": False if ran else None,
                "restart_s": 0.4 + axes["resume_world"] / 5 + number % 5 / 50 if ran else None,
                "lost_steps": axes["kill_step"] - restored if ran else None,
                "lost_s": (axes["kill_step"] - restored) / 50 if ran else None,
                "agree_s": 0.002 if ran else None,
                "compile_s": None,
                "step_s": 0.02 if ran else None,
                "save_s": 0.005 if ran else None,
                "reference": one.reference.id,
                "killed": one.killed.id,
                "resumed": one.resumed.id,
                **axes,
            }
        )
    return pd.DataFrame(rows).astype(
        {
            "first_step": "Int64",
            "max_ulp": "Int64",
            "first_ulp": "Int64",
            "ulp_to_original": "Int64",
            "expected_first_step": "Int64",
            "expected_restored_step": "Int64",
            "restored_step": "Int64",
            "lost_steps": "Int64",
            "first_loss_step": "Int64",
        }
    )


def _diagnosis(verdict: str, first: int | None, state: str | None) -> str:
    return {
        "equal": "every loss, every state digest and every sample is that of the reference",
        "different": f"from step {first} on; first different state: {state} on ranks 0-1; sample ids equal",
        "invalid": "a checkpoint of step 16 was committed but the run restored step 0",
        "not-run": "no CUDA device",
    }.get(verdict, f"the resumed leg {verdict}")


def restored_step(kill: int, point: str) -> int:
    """Newest checkpoint of a run that saves every 4 steps and is killed at this point."""
    return kill // 4 * 4 if point == "saved" or kill % 4 else kill - 4
