"""Hand-made experiments, verdicts and evidence of any size, for the tests of the page and its figures."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace as Record
from typing import Any

import pandas as pd

STEPS = 24
CONTROLS = [
    ("rng not restored", "rng", "different", 17, "rng.torch", "the dropout masks start again at the seed"),
    ("optimizer moments dropped", "optimizer", "different", 17, "optimizer.exp_avg.*", "AdamW starts cold"),
    ("sampler epoch not restored", "sampler", "different", 17, "sampler.epoch", "the shuffle of epoch 0"),
    ("schedule restarted", "schedule", "different", 17, "schedule.*", "warm-up runs a second time"),
    ("average of the weights not restored", "ema", "different", 16, "ema.*", "the losses can't see it"),
    ("silent restart from scratch", "checkpoint", "invalid", None, None, "a save was there and was not used"),
    ("a fault that never fires", "nothing", "invalid", None, None, "no receipt of the fault"),
]


def leg(
    kind: str,
    backend: str,
    world: int,
    *,
    faults: tuple = (),
    parent: Any = None,
    repeat: int = 0,
    kill: int | None = None,
    **settings: Any,
) -> Record:
    """A leg with the attributes that judges use: id, spec, label, world, backend, parent."""
    trainer = {"settings": settings}
    parts = [kind, backend, f"w{world}", *([f"k{kill}"] if kill else []), *map(str, settings.values())]
    name = "-".join(parts) + ("-twin" if repeat else "")
    if kind == "resume":
        name += "-of-" + parent.id
    spec = {
        "trainer": trainer,
        "backend": backend,
        "world": world,
        "launcher": "local",
        "faults": list(faults),
        "hardware": {"threads": 1},
        "parent": parent.id if parent else None,
        "repeat": repeat,
    }
    return Record(
        id=name,
        spec=spec,
        label=name,
        world=world,
        backend=backend,
        parent=parent,
        faults=faults,
        trainer=trainer,
        hardware={"threads": 1},
        launcher="local",
        repeat=repeat,
    )


def cell(
    backend: str,
    world: int,
    resume: int,
    kill: int,
    point: str,
    fault: str,
    *,
    control: str | None = None,
    forget: str | None = None,
    expect: tuple = ("equal", None, None, "whole state"),
    **extra: Any,
) -> Record:
    """One cell; ``extra`` are further axes, such as ``{"trainer.loader": "workers"}``."""
    settings = {key.split(".", 1)[1]: value for key, value in extra.items() if key.startswith("trainer.")}
    reference, twin = (leg("reference", backend, world, repeat=n, **settings) for n in (0, 1))
    strike = {"id": "0", "kind": fault, "ranks": "last", "point": point, "step": kill, "attempt": 0}
    killed = leg("kill", backend, world, faults=(strike,), kill=kill, p=point, f=fault, **settings)
    resumed = leg("resume", backend, resume, parent=killed, **({"forget": forget} if forget else {}))
    axes = {
        "backend": backend,
        "world": world,
        "kill_step": kill,
        "point": point,
        "fault": fault,
        "resume_world": resume,
        **extra,
    }
    name = f"{backend}-w{world}-k{kill}-{point}-{fault}-r{resume}" + "".join(f"-{v}" for v in extra.values())
    return Record(
        id=f"control-{forget}-{name}" if control else name,
        control=control,
        axes=axes,
        reference=reference,
        twin=twin,
        killed=killed,
        resumed=resumed,
        legs=(reference, twin, killed, resumed),
        expect=Record(verdict=expect[0], first_step=expect[1], first_state=expect[2], because=expect[3]),
        against="same topology" if world == resume else "changed topology, fixed-order reduction",
    )


def experiment(
    backends=("gloo",),
    worlds=(1, 2, 4),
    kills=((2, "step"), (6, "step"), (8, "saved"), (19, "step")),
    faults=("sigkill",),
    controls: bool = True,
    name: str = "kill_resume",
    **extra: Any,
) -> Record:
    """An experiment over the product of these axes, with the usual negative controls."""
    cells = [
        cell(b, w, r, k, p, f, **dict(zip(extra, more, strict=True)))
        for b, w, r, (k, p), f, *more in product(backends, worlds, worlds, kills, faults, *extra.values())
    ]
    if controls:
        cells += [
            cell(
                backends[0],
                2,
                2,
                19,
                "step",
                "sigkill",
                control=title,
                forget=forget,
                expect=(verdict, step, state, because),
            )
            for title, forget, verdict, step, state, because in CONTROLS
        ]
    claims = (Record(text="A run that is killed anywhere goes on bit for bit at the same world.", cells=()),)
    return Record(
        name=name,
        title="Kill and resume",
        digest="feedc0de12345678",
        trainer={"settings": {}},
        cells=tuple(cells),
        claims=claims,
        question="If a training run is killed and comes back on another number of ranks, is it still the same run?",
    )


def verdicts(asked: Record, wrong: dict[str, str] | None = None, absent: str | None = "nccl") -> pd.DataFrame:
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
                "diagnosis": _diagnosis(verdict, first, state),
                "comparison": f"{one.against}, {axes['backend']}: resumed leg "
                f"(world {axes['resume_world']}) against the "
                f"undisturbed reference (world {axes['world']}): losses of steps {restored + 1}-24 as float32 "
                f"bits; {(24 - restored) // 4 * 180:,} state digests by name; samples of "
                f"{24 - restored} steps over all ranks"
                if ran
                else "nothing was compared",
                "expected_first_step": expect.first_step,
                "expected_first_state": expect.first_state,
                "because": expect.because,
                "restored_step": restored if ran else None,
                "committed_step": restored if ran else None,
                "steps_compared": (24 - restored) if ran else 0,
                "losses_different": 0 if first is None else 25 - first,
                "first_loss_step": first,
                "states_compared": 900 if ran else 0,
                "states_different": 0 if first is None else 12,
                "samples_equal": True if ran else None,
                "detect_s": 0.02 + number % 7 / 100 if ran else None,
                "restart_s": 0.4 + axes["resume_world"] / 5 + number % 5 / 50 if ran else None,
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
            "expected_first_step": "Int64",
            "restored_step": "Int64",
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
