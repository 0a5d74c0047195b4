"""The launcher: whether it started the run again as it should, what that took, and who was who before and after."""

from __future__ import annotations

import itertools

from takeback.checkers import attempts
from takeback.checkers.case import Case, Event, LegView
from takeback.checkers.finding import Finding
from takeback.checkers.words import count, signal_named
from takeback.leg import LOCAL


def check(case: Case) -> Finding:
    """``restarts``, ``burned``, ``rank_map``, ``launcher_end`` and the parts of the time; ``crashed`` if it gave up.

    A leg whose launcher was to start it again and never did has nothing to be compared.
    """
    leg = case.killed.whole
    if leg.spec.get("launcher", LOCAL) == LOCAL:
        return Finding()
    groups, burned = attempts.groups_of(leg), attempts.burned(leg)
    columns = {
        "restarts": max(map(attempts.restarts_of, groups.values()), default=None),
        "burned": len(burned),
        "rank_map": " → ".join(_group(groups[number]) for number in sorted(groups)),
        "launcher_end": "; ".join(_end(event) for event in leg.events("agent_exited")),
        **_times(case),
    }
    if flaw := _contract(leg):
        return Finding("invalid", flaw, columns=columns)
    remark = f"{count(len(burned), 'restart was', 'restarts were')} burned: {_why(leg, burned)}" if burned else ""
    by_launcher = case.cell.axes.get("resume_by") == "launcher"
    if by_launcher and not case.resumed.events("launched"):
        done = case.killed.losses.steps
        orphans = f"; its ranks went on to step {done[-1]}" if case.killed.events("finished") else ""
        sentence = f"the launcher did not start the run again ({columns['launcher_end']}){orphans}"
        return Finding("crashed", sentence, columns=columns)
    world = case.cell.axes["resume_world"] if by_launcher else case.cell.axes["world"]
    last = case.resumed if by_launcher else case.killed
    if last.spec["world"] != world and last.restored:
        return Finding("invalid", f"the last group had {count(last.world, 'rank')}, not {world}", columns=columns)
    return Finding(compared=f"{count(len(groups), 'worker group')} of one launch", remark=remark, columns=columns)


def _contract(leg: LegView) -> str:
    """What breaks the launcher's contract; empty if nothing does.

    All workers are stopped before others are started, none is of two groups, all have the same arguments, and there
    are no more restarts than allowed (torch.distributed.run, "Membership changes" and "max_restarts").
    """
    groups = attempts.groups_of(leg)
    allowed = leg.spec["launcher"].get("with", {}).get("max_restarts", 0)
    if any(attempts.restarts_of(launched) > allowed for launched in groups.values()):
        return f"the launcher started the ranks again more often than max_restarts, {allowed}"
    workers = [event.detail for launched in groups.values() for event in launched]
    if len({(worker["of_agent"], worker["of_pid"]) for worker in workers}) < len(workers):
        return "a process was a rank of two attempts"
    if len({tuple(worker["command"]) for worker in workers}) > 1:
        return "ranks were started with different arguments"
    ended = {event.detail["of_pid"]: event.monotonic for event in leg.events("exited")}
    for number in sorted(groups)[1:]:
        agents = {event.detail["of_agent"] for event in groups[number]}
        began = min(event.monotonic for event in groups[number])
        for event in groups.get(number - 1, []):
            pid = event.detail["of_pid"]
            if event.detail["of_agent"] in agents and ended.get(pid, began) > began:
                return (
                    f"process {pid} of attempt {number - 1} was still there when its agent had begun attempt {number}"
                )
    return ""


def _group(launched: list[Event]) -> str:
    """``0:4711@0.1 1:4712@1.0``: rank, process, node and local rank."""
    rows = sorted((event.detail["of_rank"], event.detail) for event in launched)
    return " ".join(f"{rank}:{d['of_pid']}@{d['of_agent']}.{d['local_rank']}" for rank, d in rows)


def _end(event: Event) -> str:
    how = event.detail
    end = f"status {how['status']}" if how["signal"] is None else signal_named(how["signal"])
    return f"agent {how['of_agent']}: {'unknown' if how['known'] == 'nobody' else end} by {how['by']}"


def _why(leg: LegView, burned: list[int]) -> str:
    errors = [event for event in leg.events("error") if event.attempt in burned]
    return " ".join(errors[0].detail["text"].split())[:120] if errors else "no error was told"


def _times(case: Case) -> dict[str, float | None]:
    """From the last strike of the killed life to the first step of the next, in parts that add up.

    ``notice_s`` until an agent noticed, ``stop_s`` until the last rank of the old group had ended, ``rendezvous_s``
    until a rank of the next life was there (burned restarts included), ``start_s`` until its group had formed (imports
    and connections), ``load_s`` until the state was restored, ``first_step_s`` until the first step.
    """
    names = ("notice_s", "stop_s", "rendezvous_s", "start_s", "load_s", "first_step_s")
    strikes = case.killed.strikes
    if not strikes or case.resumed.whole is not case.killed.whole:
        return dict.fromkeys(names)
    struck = max(event.monotonic for event in strikes)
    noticed = [e.monotonic for e in case.killed.whole.events("launcher_noticed") if e.monotonic >= struck]
    ended = [e.monotonic for e in case.killed.events("exited")]
    marks = [struck, min(noticed, default=None), max(ended, default=None)]
    marks += [_first(case.resumed, kind) for kind in ("launched", "group_formed", "restored", "first_step")]
    spans = [None if None in pair else max(0.0, pair[1] - pair[0]) for pair in itertools.pairwise(marks)]
    return dict(zip(names, spans, strict=True))


def _first(leg: LegView, kind: str) -> float | None:
    return min((event.monotonic for event in leg.events(kind)), default=None)
