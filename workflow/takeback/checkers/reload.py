"""Reloads: ranks that load a checkpoint in the middle of a run load the same one."""

from __future__ import annotations

from collections import defaultdict

from takeback.checkers.case import Case, Event
from takeback.checkers.finding import Finding
from takeback.checkers.words import count


def check(case: Case) -> Finding:
    """MIN = MAX over the ranks of the step of each reload of the resumed leg, the first of each, the second, …"""
    by_rank: dict[int, list[Event]] = defaultdict(list)
    for event in case.resumed.events("reloaded"):
        by_rank[event.rank].append(event)
    times = min((len(events) for events in by_rank.values()), default=0)
    for number in range(times):
        steps = {rank: events[number].step for rank, events in sorted(by_rank.items())}
        if len(set(steps.values())) > 1:
            which = ", ".join(f"rank {rank} → {step}" for rank, step in steps.items())
            first = min(steps.values()) + 1
            return Finding("different", f"ranks reloaded different steps: {which}: no fence between save and load",
                           first_step=first)  # fmt: skip
    return Finding(compared=f"steps of {count(times, 'reload')}" if times else "")
