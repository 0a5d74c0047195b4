"""A further node comes while the run goes on: one more agent, which asks to be let into the group.

No harm by itself; but an elastic launcher stops all ranks to form the larger group. The victim is held until the
launcher has noticed, as a long step would: a short run would else be over before the newcomer is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from takeback.faults import Injection

ENDS_BY: list[dict[str, int]] = []
PROVES = {"arrived": True}
NEEDS = "nodes"


def strike(injection: Injection) -> Iterator[float]:
    """Let the launcher start one more node, and the victim go on when it is noticed."""
    yield from injection.launcher.arrive(injection.seen)
    injection.let_go()
