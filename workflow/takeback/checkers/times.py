"""How long it took: to notice the loss of a rank, and to be back at work."""

from __future__ import annotations

from takeback.checkers.case import Case
from takeback.checkers.finding import Finding


def check(case: Case) -> Finding:
    """``detect_s``, ``restart_s``, ``agree_s`` and ``compile_s`` in seconds; None where nothing tells."""
    columns = {"detect_s": _detected(case), "restart_s": _restarted(case), "agree_s": _agreed(case)}
    return Finding(columns={**columns, "compile_s": _compiled(case)})


def _detected(case: Case) -> float | None:
    """From the last fault to the first error of a rank that it did not strike."""
    fired = case.killed.events("fault_fired")
    if not (fired and case.killed.strikes):
        return None
    struck = max(event.monotonic for event in case.killed.strikes)
    victims = {victim["rank"] for event in fired for victim in event.detail["victims"]}
    errors = case.killed.events("error")
    seconds = [e.monotonic - struck for e in errors if e.rank not in victims and e.monotonic >= struck]
    return min(seconds, default=None)


def _restarted(case: Case) -> float | None:
    """From the launch of the resumed leg to the end of its first step."""
    launched = [event.monotonic for event in case.resumed.events("launched")]
    stepped = [event.monotonic for event in case.resumed.events("first_step")]
    return min(stepped) - min(launched) if launched and stepped else None


def _agreed(case: Case) -> float | None:
    """What the ranks of the resumed leg took to know that all have restored the same; the slowest of them."""
    return max((event.detail["seconds"] for event in case.resumed.events("agreed")), default=None)


def _compiled(case: Case) -> float | None:
    """What compilation took in the resumed leg, by the word of a trainer that compiles; the slowest of its ranks."""
    told = [event.detail.get("seconds") for event in case.resumed.events("note")]
    name = "compiled_since_start"
    return max((took[name] for took in told if isinstance(took, dict) and name in took), default=None)
