"""One host's part of a leg: ``python -m takeback.launchers.on_host``, which the launcher ``hosts`` runs there.

It asks on stdin what to do, forks this host's ranks, strikes them, and sends their records and its own as they are
written. It ends all of them when the supervisor, or the way to it, is gone: then stdin ends, or is silent for too long.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from takeback import backends, clock, faults, leg_job, machine, network, sources
from takeback.faults import Injection, Surroundings, Victim
from takeback.launchers import local, process, reached, wire
from takeback.launchers.injector import Injector
from takeback.launchers.recorder import Recorder

PULSE = 1.0  # s between two looks at whether the supervisor is silent; it has a word each second
PATIENCE = 15.0  # s for a link to be down
NETWORK = ("network_cut", "host_gone")  # faults of the link between hosts, which the supervisor cuts


def main() -> None:
    """Serve one request, then end, with nothing left."""
    out = os.dup(1)  # not inherited by what is executed; nothing else may print there
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("takeback: told to end"))
    process.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="takeback-host-"))
    status = 1
    try:
        serve(Orders(), folder, out)
        status = 0
    except SystemExit as end:
        print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        process.end_descendants()
        shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.flush()
        os._exit(status)  # not waiting for a thread that may wait for a link which is cut


class Orders(wire.Lines):
    """What the supervisor says."""

    def __init__(self) -> None:
        super().__init__(0)
        self.heard, self.silence = time.monotonic(), PATIENCE  # s after which the supervisor counts as gone
        self.came: list[dict[str, Any]] = []

    def hear(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Orders that have come, or that come within so many seconds.

        Raises:
            SystemExit: the supervisor is gone.
        """
        orders, self.came = self.came, []
        if self.wait(0.0 if orders else seconds):
            found = self.read()
            if found is None:
                sys.exit("takeback: whoever asked for this run is gone")
            self.heard = time.monotonic()
            orders += found
        elif time.monotonic() - self.heard > self.silence:
            sys.exit(f"takeback: no word from whoever asked for this run in {self.silence:.0f} s")
        return orders

    def await_one(self, name: str) -> Any:
        """What the next order of this name says."""
        while True:
            orders = self.hear(PULSE)
            for number, order in enumerate(orders):
                if name in order:
                    self.came = orders[number + 1 :]
                    return order[name]


def serve(orders: Orders, folder: Path, out: int) -> None:
    """From the request to the last record."""
    request = orders.await_one("request")
    spec, node, orders.silence = request["spec"], request["node"], request["silence"]
    wire.send(out, hello=facts(request))
    orders.await_one("clock")
    wire.send(out, clock=time.monotonic())
    leg = Path(request["folder"])
    os.environ.update({**backends.environment(spec), **leg_job.threads(spec), **leg_job.kernels(spec)})
    if request["until"]:
        os.environ[clock.VARIABLE] = request["until"]
    for name in ("records", "stdout"):
        (folder / name).mkdir()
    if request["shared"]:
        (folder / "checkpoints").symlink_to(leg / "checkpoints")
    else:
        (folder / "checkpoints").mkdir()
    local.preload()
    store = local.host_store() if node == 0 else None
    wire.send(out, ready={"address": reached.at(), "port": store and store.port})
    meet = orders.await_one("start")
    recorder = Recorder(folder / "records", f"host-{node}")
    around = {"host": OnHost(request, meet, out)}
    around |= {fault["id"]: Link(meet["link"]) for fault in spec["faults"] if fault["kind"] in NETWORK}
    planned = [fault for fault in spec["faults"] if fault["point"] != "end"]
    injector = HostInjector(planned, folder, spec["world"], around, recorder, local.ATTEMPT)
    told = {number: {"of_agent": node, "local_rank": place} for place, number in enumerate(request["ranks"])}
    more = {"restarts": 0, "world": spec["world"], "command": local.command(spec, leg)}
    told = {number: {**of_rank, **more} for number, of_rank in told.items()}
    root = Path(request["root"])
    ranks = local.start_ranks(spec, folder, root, recorder, around, meet["port"], told)
    sender = wire.Sender(folder, f"host-{node}.jsonl", out)
    sender.start()
    HostWatch(spec, ranks, injector, recorder, orders).until_all_have_ended([orders.descriptor])
    sender.all_is_written.set()
    while sender.is_alive():
        orders.hear(PULSE / 10)
    if sender.all_is_sent:
        wire.send(out, done=True)


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """What of a host must be as on the supervisor's machine, and whether it sees the folder of the leg."""
    path = Path(request["folder"], "leg.json")
    sees = not request["shared"] or (path.exists() and json.loads(path.read_text()) == request["spec"])
    return {"pid": os.getpid(), "clock": clock_of_machine(), "same": same(), "sees": sees, "caller": reached.caller()}


def same() -> dict[str, str]:
    """What must be the same everywhere, else bits can't be compared, or a host does other things than it is told."""
    model, features = machine.cpu()
    versions = {name: str(machine.version(name)) for name in ("torch", "numpy")}
    own = {f"takeback's {role} sources": sources.digest(role) for role in ("trainer", "nemesis")}
    return {"processor": f"{model} ({features})", **versions, "python": platform.python_version(), **own}


def clock_of_machine() -> str:
    """Two processes with the same one have the same monotonic clock (time_namespaces(7))."""
    namespace = Path("/proc/self/ns/time")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot + (os.readlink(namespace) if namespace.exists() else "")


class OnHost(Surroundings):
    """What the ranks of this host have that others have not."""

    def __init__(self, request: dict[str, Any], meet: dict[str, Any], out: int) -> None:
        self.ranks, self.meet, self.out, self.own = request["ranks"], meet, out, reached.at()
        self.interface = reached.interface(self.own)

    def variables(self, rank: int) -> dict[str, str]:
        return {
            "LOCAL_RANK": str(self.ranks.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "MASTER_ADDR": self.meet["address"],
            "TAKEBACK_HOST": self.own,
            **self.interface,
            **self.meet["store"],
        }

    def enter(self, rank: int) -> None:
        os.close(self.out)  # ours alone: whoever holds it holds the connection


class Link(Surroundings):
    """The link of this host, as it sees it itself; the supervisor, at the other end, cuts it.

    Args:
        supervisor: an address at the other end, which refuses on a port where nobody listens, as long as it is reached.
    """

    def __init__(self, supervisor: str) -> None:
        self.supervisor, self.answered = supervisor, False

    def look(self) -> None:
        """Whether it is reached, before anybody is told that it is to be cut."""
        self.answered = network.answers(self.supervisor, network.UNHURRIED)

    def cut(self, injection: Injection) -> None:
        """Wait until the link is down: that the fault is to strike is told already, in the record before."""
        injection.seen["answered_before"] = self.answered
        deadline = time.monotonic() + PATIENCE
        while (state := network.state("eth0")) == "up" and time.monotonic() < deadline:
            time.sleep(0.01)
        injection.seen["link"] = "up" if state == "up" else "down"  # the kernel's word is lowerlayerdown

    def ask(self, injection: Injection) -> None:
        """Whether the other end still answers."""
        injection.seen["answers"] = network.answers(self.supervisor)


class HostInjector(Injector):
    """As its base, of the ranks of one host. It tells when a fault is due, and strikes when the supervisor says so.

    A fault may have victims on several hosts, and the first that comes by its point makes it strike them all.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: Faults that are due, and the record of who holds itself for each.
        self.told: dict[str, dict[str, Any] | None] = {}
        self.still: set[int] = set()  # victims that are stopped until they are struck

    @property
    def wait(self) -> float:
        """Orders come at any time, and their silence is to be seen."""
        return min(super().wait or PULSE, PULSE)

    def _strike(self, fault: dict[str, Any], alive: dict[int, Victim], held: dict[str, Any] | None) -> None:
        if getattr(faults.get(fault["kind"]), "EACH", False):
            super()._strike(fault, alive, held)
        elif fault["id"] not in self.told:
            self.told[fault["id"]] = held
            self.recorder("fault_due", attempt=self.attempt, fault=fault["id"])

    def stop(self, name: str, alive: dict[int, Victim]) -> None:
        """Stop the victims that are here, and say so: they must not see the end of others before their own."""
        victims = self._named(self.waiting[name], alive)
        self.still |= {victim.rank for victim in victims}
        Injection(self.waiting[name], victims, self.folder, Surroundings(), []).stop()
        self.recorder("victims_stopped", attempt=self.attempt, fault=name)

    def _release(self, number: int, alive: dict[int, Victim]) -> None:
        if number not in self.still:
            super()._release(number, alive)

    def strike(self, name: str, alive: dict[int, Victim]) -> None:
        """Strike the victims that are here."""
        if fault := self.waiting.get(name):
            if isinstance(link := self.around.get(name), Link):
                link.look()
            super()._strike(fault, alive, self.told.get(name))


class HostWatch(local.Watch):
    """As its base; what happens elsewhere comes as orders."""

    def __init__(
        self, spec: dict[str, Any], ranks: dict[int, int], injector: HostInjector, recorder: Recorder, orders: Orders
    ) -> None:
        super().__init__(spec["deadline"], spec.get("notice"), ranks, injector, recorder)
        self.orders, self.alone, self.idle = orders, False, False

    def heed(self, ready: set[int]) -> None:
        """Do what the supervisor says."""
        for order in self.orders.hear():
            match order:
                case {"stop": fault}:
                    self.injector.stop(fault, self.alive)
                case {"strike": fault}:
                    self.injector.strike(fault, self.alive)
                case {"within": seconds}:  # a rank elsewhere has failed
                    self.deadline.within(seconds)
                case {"struck": True}:
                    self.injector.last_strike = time.monotonic()
                case {"alone": True}:
                    self.alone = True

    def only_the_stopped_are_left(self) -> bool:
        """Here, and on all other hosts."""
        if not super().only_the_stopped_are_left():
            return False
        if not self.idle:
            self.idle = True
            self.recorder("idle", attempt=local.ATTEMPT)
        return self.alone


if __name__ == "__main__":
    main()
