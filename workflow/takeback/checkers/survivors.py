"""What a fault's survivors were told of it: the ranks that it did not strike."""

from __future__ import annotations

import re

from takeback.checkers.case import Case, Event, LegView
from takeback.checkers.finding import Finding

NOTHING = "nothing"
_SOURCE = re.compile(r"\[/[^\]\s]*:\d+\] ")  # [/…/gloo/transport/tcp/pair.cc:553]
_ADDRESS = re.compile(r"\[?(?P<host>(?:\d+\.){3}\d+|[0-9a-f:]*::[0-9a-f:]*)\]?:\d+")
_RANK = re.compile(r"\brank (\d+)", re.IGNORECASE)


def check(case: Case) -> Finding:
    """``survivors_saw``, ``names_peer`` and ``blames_other``; None where nothing was struck or nobody survived."""
    leg = case.killed
    fired = leg.events("fault_fired")
    victims = {victim["rank"] for event in fired for victim in event.detail["victims"]}
    survivors = set(range(leg.ranks)) - victims
    if not (victims and survivors and leg.strikes):
        return Finding()
    struck = max(event.monotonic for event in leg.strikes)
    errors = [event for event in leg.events("error") if event.rank in survivors and event.monotonic >= struck]
    first = {event.rank: event for event in reversed(errors)}
    saw = [_kind(event) for event in errors]
    if survivors - first.keys():
        saw.append(NOTHING)
    named = set().union(*(_named(leg, event) for event in first.values())) if first else None
    return Finding(
        columns={
            "survivors_saw": "; ".join(dict.fromkeys(saw)),
            "names_peer": None if named is None else bool(named & victims),
            "blames_other": None if named is None else bool(named & survivors),
        }
    )


def _kind(error: Event) -> str:
    """Type and first sentence of an error, without its place in the source, addresses and numbers."""
    text = _ADDRESS.sub("", _SOURCE.sub("", error.detail["text"].strip()))
    sentence = re.split(r"\. |\n", text)[0].rstrip(". ")
    words = re.sub(r"\s+(?=[:,;])|(?<=\s)\s+", "", re.sub(r"\d+", "N", sentence))
    return f"{error.detail['type']}: {words}"


def _named(leg: LegView, error: Event) -> set[int]:
    """Ranks that an error names: by number, or by the address of a host that is theirs alone."""
    hosts: dict[str, list[int]] = {}
    for event in leg.events("launched"):
        hosts.setdefault(event.detail.get("host", ""), []).append(event.detail["of_rank"])
    text = error.detail["text"]
    named = {int(number) for number in _RANK.findall(text)}
    for address in _ADDRESS.finditer(text):
        ranks = hosts.get(address["host"], [])
        named |= set(ranks) if len(ranks) == 1 else set()
    return named
