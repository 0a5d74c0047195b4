"""What a cell is compared with: the one run that says which bits are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from takeback.trainers import mesh

AFTER_A_SAVE = ("save.pointer", "saved")  # points of the reference trainer at which the step's checkpoint counts


def reference_of(
    axes: Mapping[str, Any], settings: Mapping[str, Any] | None, resumes: Mapping[str, Any] | None
) -> tuple[str, int, dict[str, Any]]:
    """What a cell is compared with: in words, on how many ranks, with which further settings.

    Args:
        settings, resumes: all settings of the killed and of the resumed run; None where nobody knows their meaning.
    """
    world, resume_world = axes["world"], axes["resume_world"]
    if named := axes["reference"]:
        extra, launched = dict(named.get("trainer", {})), named.get("world", world)
        strategy = f", {extra['strategy']}" if "strategy" in extra else ""
        reduction = ", fixed-order reduction" if settings else ""
        return f"one run on {launched} rank{'s' * (launched > 1)}{strategy}{reduction}", launched, extra
    worlds = {world, *(life.get("world", world) for life in axes.get("then") or [])}
    if worlds == {resume_world} and (settings is None or layout(settings) == layout(resumes)):
        return "same topology", world, {}
    if settings is None:
        return "changed topology, the trainer's own reduction", world, {}
    if settings["reduction"] == "fixed-order" and tensor_ranks(settings, world) == tensor_ranks(resumes, resume_world):
        return "changed topology, fixed-order reduction", world, {}
    # The backend's own sum has other bits at another world size, and so have sums within a layer that more or fewer
    # ranks share: compare with an uninterrupted run whose state is moved in memory, never through a file, at the step
    # of the newest checkpoint.
    step = axes["kill_step"] if axes["point"] in AFTER_A_SAVE else axes["kill_step"] - 1
    saved = step // settings["save_every"] * settings["save_every"]
    other = {} if settings["strategy"] == resumes["strategy"] else {"strategy": resumes["strategy"]}
    if saved == 0:
        return "changed topology, nothing saved to hand over", resume_world, other
    to = f":{resumes['strategy']}" if other else ""
    handover = {"handover": f"{world}:{saved}:{resume_world}{to}"}
    return "changed topology, handover control", max(world, resume_world), handover


def layout(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a run's settings says which rank holds what."""
    return tuple(settings.get(name) for name in ("strategy", "shard_ranks", "tensor_ranks"))


def tensor_ranks(settings: Mapping[str, Any], world: int) -> int:
    """How many ranks share the sums within a layer."""
    return mesh.of(settings, world).get("tensor", 1)
