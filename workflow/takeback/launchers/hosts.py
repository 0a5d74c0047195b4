"""Ranks on several hosts: one command a host, over ssh or whatever runs commands there.

On each host a supervisor of its own forks the ranks and strikes them (:mod:`takeback.launchers.on_host`); this one says
when, and writes down what they send (:mod:`takeback.launchers.wire`). The first host has the store of the rendezvous.
The file that ``TAKEBACK_HOSTS`` names says which hosts (:mod:`takeback.launchers.place`); without one they are the
nodes of the Slurm job that this runs in, if it has as many, else throw-away hosts on this machine
(:mod:`takeback.launchers.sshd`). All legs of a cell are started by this launcher.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from takeback import clock, launchers, network
from takeback.launchers import local, on_host, place, process, sshd
from takeback.launchers.group import Group, NotRun
from takeback.launchers.injector import Injector
from takeback.launchers.place import Place
from takeback.launchers.recorder import Recorder

#: Ranks a host; the last one may have fewer.
PARAMETERS = {"nproc": 1}
VICTIMS = ["ranks"]
EVERY_LEG = True
#: What a host can do to its own ranks, to the link of a throw-away host, and to files when all is over.
FAULTS = ["sigkill", "sigterm", "sigstop", "pause", "exit", "exception", "segfault", "corrupt", "network_cut",
          "host_gone"]  # fmt: skip


def launch(spec: dict[str, Any], folder: Path, root: Path, recorder: Recorder, bound: Sequence[int] = ()) -> None:
    """Run one leg, in a process of its own: when either is killed, the other ends all that is on this machine.

    What is on others ends by itself when its connection does.

    Raises:
        ExperimentError: the file of the hosts has a mistake.
        SystemExit: whoever asked for the run is gone, or the supervisor was killed.
    """
    cuts = any(fault["kind"] in on_host.NETWORK for fault in spec["faults"])  # links that must be ours
    there = place.named() or (None if cuts else place.allocated(launchers.machines(spec)))
    with ExitStack() as stack:
        owned = f"takeback-ssh-{os.getpid()}-"  # by it leftovers are known
        temporary = partial(tempfile.TemporaryDirectory, prefix=owned, ignore_cleanup_errors=True)
        keys = None if there else Path(stack.enter_context(temporary()))
        process.guarded(partial(run, spec, folder, root, recorder, there, keys), bound)


def run(
    spec: dict[str, Any],
    folder: Path,
    root: Path,
    recorder: Recorder,
    there: Place | None,
    keys: Path | None,
    bound: Sequence[int],
) -> None:
    """Start the hosts, watch until all have sent all, and record what became of them."""
    each = launchers.parameters(spec["launcher"])["nproc"]
    shares = [list(range(first, min(first + each, spec["world"]))) for first in range(0, spec["world"], each)]
    with ExitStack() as stack:
        try:
            links = None
            if keys is not None:
                stack.callback(shutil.rmtree, keys, ignore_errors=True)
                there, links = throw_away(len(shares), keys, stack)
            if len(there.hosts) < len(shares):
                raise NotRun(f"{len(shares)} hosts are needed, {os.environ[place.VARIABLE]} names {len(there.hosts)}")
            if links is None and any(fault["kind"] in on_host.NETWORK for fault in spec["faults"]):
                raise NotRun("the links of these hosts are not ours to cut; throw-away hosts are")
            stack.callback(process.end_descendants)  # before their hosts
            group = stack.enter_context(Group(spec, folder, recorder, there, links, bound))
            group.start(shares, root)
        except NotRun as reason:
            recorder("not_run", attempt=local.ATTEMPT, reason=str(reason))
            if keys is None:
                (folder / clock.MARK).touch()  # the next call asks the same hosts again
            return
        group.watch()
        for host in group.hosts:
            host.end(folder, recorder)
    Injector(spec["faults"], folder, spec["world"], {}, recorder, local.ATTEMPT).finish()  # those at the end


def throw_away(count: int, keys: Path, stack: ExitStack) -> tuple[Place, network.Hosts]:
    """Hosts of this machine, taken away with the stack."""
    try:
        return stack.enter_context(sshd.hosts(count, keys))
    except OSError as error:
        raise NotRun(f"{place.VARIABLE} names no hosts, and throw-away ones can't be had: {error}") from error
