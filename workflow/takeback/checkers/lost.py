"""Lost work: what had been done when the fault struck, and has to be done again."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from takeback.checkers.case import Case, LegView, kept
from takeback.checkers.finding import Finding


def check(case: Case) -> Finding:
    """``lost_steps``: steps that any rank had done after the restored one; ``lost_s``: seconds they had taken.

    Beside them, from the reference: ``step_s``, seconds of a step without its saves, and ``save_s``, of a save.

    The seconds count from the moment at which the restored checkpoint was complete (from the first step, where
    nothing was restored) to the last fault. None where the resumed leg told no receipt, or nothing tells the time.
    """
    columns = _costs(case.reference)
    if not case.resumed.restored:
        return Finding(columns=columns)
    step, done = case.restored_step, case.killed.losses.steps
    columns |= {"lost_steps": max(0, int(max(done, default=0)) - step), "lost_s": _seconds(case, step)}
    return Finding(columns=columns)


@kept
def _costs(leg: LegView) -> dict[str, float | None]:
    """Of a whole run: what a step takes, and what a save takes (the median of what the trainer told of each)."""
    saves = [sum(_numbers(event.detail["seconds"])) for event in leg.events("note") if "seconds" in event.detail]
    began, ended = leg.events("first_step"), leg.events("finished")
    steps = len(leg.losses.steps) - 1
    if not (began and ended and steps > 0):
        return {"step_s": None, "save_s": median(saves) if saves else None}
    seconds = max(event.monotonic for event in ended) - min(event.monotonic for event in began)
    return {"step_s": (seconds - sum(saves)) / steps, "save_s": median(saves) if saves else None}


def _numbers(told: Any) -> Iterator[float]:
    """The numbers of nested mappings: the parts of a time."""
    if isinstance(told, dict):
        for part in told.values():
            yield from _numbers(part)
    elif isinstance(told, int | float):
        yield float(told)


def _seconds(case: Case, step: int) -> float | None:
    leg = case.killed
    struck = [event.monotonic for event in leg.strikes]
    since = [event.monotonic for event in leg.events("saved") if event.step == step] or _began(leg, step)
    return max(0.0, max(struck) - min(since)) if struck and since else None


def _began(leg: LegView, step: int) -> list[float]:
    """When the leg itself went on from the step, if it did."""
    return [event.monotonic for event in leg.restored.values() if event.step == step]
