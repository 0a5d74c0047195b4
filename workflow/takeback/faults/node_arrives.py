"""A further node comes while the run goes on: one more agent, which asks to be let into the group.

No harm by itself; but an elastic launcher stops all ranks to form the larger group.
"""

from __future__ import annotations

from takeback.faults import Injection

ENDS_BY: list[dict[str, int]] = []
PROVES = {"arrived": True}
NEEDS = "nodes"


def strike(injection: Injection) -> None:
    """Let the launcher start one more node, and the rank that holds itself go on."""
    assert injection.arrive is not None
    injection.seen.update(injection.arrive())
    injection.let_go()
