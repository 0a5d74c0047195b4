"""How the legs ended: not-run, crashed, hung, refused."""

from __future__ import annotations

import signal
from typing import Any

from takeback.checkers.case import Case, Event, LegView, kept
from takeback.checkers.finding import Finding
from takeback.checkers.words import named, signal_named

#: Signals by which a process ends itself: a failed assertion, a fault of its memory. All others are sent to it.
OWN = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGPIPE, signal.SIGSEGV, signal.SIGSYS,
       signal.SIGTRAP}  # fmt: skip


def could_run(case: Case) -> Finding:
    """``not-run`` with the reason if any leg could not run on this machine."""
    for leg in case.roles.values():
        for event in leg.events("not_run"):
            return Finding("not-run", event.detail["reason"])
    return Finding()


def uninterrupted_ran(case: Case) -> Finding:
    """Reference and twin ran to their end, and the killed leg ran until the fault struck."""
    for role in ("reference", "twin"):
        found = _ended_well(case.roles[role], role)
        if found.verdict == "refused":
            # A refusal is an answer to a resume only; whoever starts afresh should have run.
            return Finding("crashed", f"the {role} did not run: {found.sentence}")
        if found.verdict:
            return found
    if case.killed.events("fault_fired"):
        return Finding()
    early = _ended_well(case.killed, "killed leg")
    if not early.verdict:
        return Finding()
    verdict = "crashed" if early.verdict == "refused" else early.verdict
    return Finding(verdict, f"before its fault could strike, {early.sentence}")


def resumed_ran(case: Case) -> Finding:
    """The resumed leg ran to its end, or refused with a clear error before any step.

    One that is struck in its turn is judged as the killed leg of the next life.
    """
    if not case.goes_to_the_end and case.resumed.events("fault_fired"):
        return Finding()
    return _ended_well(case.resumed, "resumed leg")


def sent(how: dict[str, Any]) -> bool:
    """Whether a rank (detail of its ``exited`` event) was ended by a signal which nobody of ours sent."""
    return how["by"] == "itself" and how["signal"] is not None and how["signal"] not in OWN


@kept
def _ended_well(leg: LegView, role: str) -> Finding:
    failed = {rank: how for rank, how in leg.exits.items() if how["status"] != 0}
    refusals = [event for event in leg.events("refused") if event.rank in failed]
    killed = any(sent(how) for how in failed.values())
    if refusals and not killed and not len(leg.losses.steps):
        ranks = named("rank", [event.rank for event in refusals])
        return Finding("refused", f"the {role} refused on {ranks}: {refusals[0].detail['reason']}")
    waiting = {rank for rank, how in failed.items() if how["by"] == "supervisor"}
    told = _last_step(leg) + _disagreement(leg)
    # Ranks that wait for a peer which has failed did not hang by themselves: the peer is the cause.
    if waiting and len(waiting) == len(failed):
        return Finding("hung", f"the {role} hung: {named('rank', waiting)} had to be ended; {told}")
    if failed:
        left = f"; {named('rank', waiting)} waited for it and had to be ended" if waiting else ""
        return Finding("crashed", f"the {role} crashed: {_cause(leg, failed)}{left}; {told}")
    unknown = set(range(leg.ranks)) - set(leg.exits)
    if unknown:
        return Finding("invalid", f"no record of how {named('rank', unknown)} of the {role} ended")
    return Finding()


def _cause(leg: LegView, failed: dict[int, dict]) -> str:
    """The earliest error; a signal that nobody of ours sent comes before it: the peers only follow."""
    for rank, how in sorted(failed.items(), key=lambda pair: not sent(pair[1])):
        if how["signal"] is not None and how["by"] == "itself":
            return f"rank {rank} ended by {signal_named(how['signal'])}"
    errors = sorted(leg.events("error") + leg.events("refused"), key=lambda event: event.monotonic)
    if errors:
        return _text(errors[0])
    rank, how = next((rank, how) for rank, how in failed.items() if how["by"] != "supervisor")
    ended = signal_named(how["signal"]) if how["status"] is None else f"status {how['status']}"
    return f"rank {rank} ended with {ended} and told no error"


def _text(event: Event) -> str:
    detail = event.detail
    words = f"{detail['type']}: {detail['text']}" if "text" in detail else f"refused: {detail['reason']}"
    return f"{' '.join(words.split())} (rank {event.rank})"


def _last_step(leg: LegView) -> str:
    steps = leg.losses.steps
    return f"its last step was {steps[-1]}" if len(steps) else "it had done no step"


def _disagreement(leg: LegView) -> str:
    """Ranks that go on from different steps wait for each other for ever: say so, it is the cause."""
    steps = {rank: event.step for rank, event in sorted(leg.restored.items())}
    if len(set(steps.values())) < 2:
        return ""
    return "; its ranks had restored different steps: " + ", ".join(f"rank {r} → {s}" for r, s in steps.items())
