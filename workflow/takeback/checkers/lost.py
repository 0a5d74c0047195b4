"""Lost work: what had been done when the fault struck, and has to be done again."""

from __future__ import annotations

from takeback.checkers.case import Case, LegView
from takeback.checkers.finding import Finding


def check(case: Case) -> Finding:
    """``lost_steps``: steps that any rank had done after the restored one; ``lost_s``: seconds they had taken.

    The seconds count from the moment at which the restored checkpoint was complete (from the first step, where
    nothing was restored) to the last fault. None where the resumed leg told no receipt, or nothing tells the time.
    """
    if not case.resumed.restored:
        return Finding()
    step, done = case.restored_step, case.killed.losses.steps
    return Finding(columns={"lost_steps": max(0, int(max(done, default=0)) - step), "lost_s": _seconds(case, step)})


def _seconds(case: Case, step: int) -> float | None:
    leg = case.killed
    fired = [event.monotonic for event in leg.events("fault_fired")]
    since = [event.monotonic for event in leg.events("saved") if event.step == step] or _began(leg, step)
    return max(0.0, max(fired) - min(since)) if fired and since else None


def _began(leg: LegView, step: int) -> list[float]:
    """When the leg itself went on from the step, if it did."""
    return [event.monotonic for event in leg.restored.values() if event.step == step]
