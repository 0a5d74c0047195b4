"""The same work on many things in several processes, for those who judge: results as if done in one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from takeback.errors import TakebackError


def cores() -> int:
    """How many processes can run at once here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def mapped(work: Callable[[Any], Any], things: Sequence[Any], processes: int) -> list[Any]:
    """``[work(thing) for thing in things]``, in forks of this process, which must have started no thread.

    A fork need not import anything again, and sees ``work`` and ``things`` without a copy. Thing n goes to fork
    n modulo ``processes``. A fork with nobody left to report to ends by itself.

    Raises:
        TakebackError: a fork was ended from outside. What ``work`` raises, at the first of the things, is raised.
    """
    processes = min(processes, len(things))
    if processes < 2:
        return [work(thing) for thing in things]
    context = multiprocessing.get_context("fork")
    inward: list[Connection] = []
    forks = []
    for number in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        inward.append(ours)
        share = (work, things[number::processes], theirs, tuple(inward))
        forks.append(context.Process(target=_share, args=share, daemon=True))
        forks[-1].start()
        theirs.close()
    try:
        shares = [_received(ours) for ours in inward]
    finally:
        for fork in forks:
            fork.kill()
            fork.join()
    found = []
    for number in range(len(things)):
        result, error = shares[number % processes][number // processes]
        if error is not None:
            raise error
        found.append(result)
    return found


def _share(work: Callable[[Any], Any], things: Sequence[Any], out: Connection, inward: Sequence[Connection]) -> None:
    """Work, and send a pair (result, error) a thing; after an error there is none to follow."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all of us, and one says so
    for ours in inward:  # else what is sent to a dead parent would wait to be read here
        ours.close()
    found: list[tuple[Any, Exception | None]] = []
    for thing in things:
        try:
            found.append((work(thing), None))
        except Exception as error:
            found.append((None, error))
            break
    out.send(found)


def _received(ours: Connection) -> list[tuple[Any, Exception | None]]:
    try:
        return ours.recv()
    except EOFError:
        raise TakebackError("a process of ours was ended from outside; is there enough memory?") from None
