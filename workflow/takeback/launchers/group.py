"""All hosts of one leg: started, told what to do, listened to until they have sent all."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from takeback import clock, faults, network, objectstore
from takeback.errors import EvidenceError
from takeback.launchers import local, on_host, reached, wire
from takeback.launchers.host import Host
from takeback.launchers.place import Place
from takeback.launchers.recorder import Recorder
from takeback.launchers.strike import Strike
from takeback.leg import victims_of

START = 60.0  # s for a host to answer
SILENCE = 60.0  # s without a word from us after which a host ends its ranks
BEAT = 1.0  # s between two words to each host
PATIENCE = 60.0  # s beyond the deadline, at which each host ends its ranks, until a host counts as lost


class NotRun(Exception):
    """The hosts can't be had; the message is the reason."""


class Group:
    """All hosts of one leg."""

    def __init__(
        self,
        spec: dict[str, Any],
        folder: Path,
        recorder: Recorder,
        there: Place,
        links: network.Hosts | None,
        bound: Sequence[int],
    ) -> None:
        self.spec, self.folder, self.recorder, self.place, self.links = spec, folder, recorder, there, links
        self.bound, self.stack = bound, ExitStack()
        self.hosts: list[Host] = []
        self.strikes: dict[str, Strike] = {}
        self.has_store = spec["trainer"].get("store") == "object"
        self.beat = self.cut_until = 0.0  # s of the monotonic clock

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: Any) -> None:
        """Whatever has happened: hosts end what they have when nobody can speak to them any more."""
        for host in self.hosts:
            host.command.stdin.close()
        for host in self.hosts:
            host.close()
        self.stack.close()

    def start(self, shares: list[list[int]], root: Path) -> None:
        """From the first word to the start of all ranks.

        Raises:
            NotRun: a host can't be reached, or is not as it must be.
            EvidenceError: it is, and could not start.
        """
        environment = self.spec["launcher"].get("environment", {})
        for node, ranks in enumerate(shares):
            words = self.place.words(node, on_host.__name__, environment)
            errors = self.folder / "stdout" / f"host-{node}.txt"
            try:
                host = Host(node, self.place.hosts[node], ranks, words, errors)
            except OSError as error:
                raise NotRun(f"{words[0]} can't be run: {error.strerror}") from error
            self.hosts.append(host)
            host.tell(request={**self.request(root), "node": node, "ranks": ranks})
        self.await_all("hello", START)
        for host in self.hosts:
            self.look_at(host)
            self.set_clock(host)
        self.await_all("ready", max(self.spec["deadline"], START))
        self.look_at_address()
        meet = {**self.hosts[0].told["ready"], "link": network.address(), "store": self.serve_store()}
        for host in self.hosts:
            host.alive = set(host.ranks)
            host.tell(start=meet)

    def look_at_address(self) -> None:
        """The others can reach the first host at its address."""
        address = self.hosts[0].told["ready"]["address"]
        if address.startswith(reached.LOOPBACK) and len({host.told["hello"]["clock"] for host in self.hosts}) > 1:
            raise NotRun(
                f"host {self.hosts[0].name} knows no address of its own but {address}, which is none to others"
            )

    def serve_store(self) -> dict[str, str]:
        """Variables of the trainer's object store, if it wants one, at the address from which its hosts were called."""
        if not self.has_store:
            return {}
        name, caller = self.hosts[0].name, self.hosts[0].told["hello"]["caller"]
        if not caller:
            raise NotRun(f"host {name} knows no address of this machine, at which it could find its object store")
        try:
            return self.stack.enter_context(objectstore.serve(self.folder / "checkpoints", caller))
        except EvidenceError as error:
            raise NotRun(str(error)) from error

    def request(self, root: Path) -> dict[str, Any]:
        """What a host is to do."""
        return {
            "spec": self.spec,
            "folder": str(self.folder),
            "root": self.place.folder if root == Path(Place.folder) else str(root),
            "shared": self.place.shared and not self.has_store,
            "until": os.environ.get(clock.VARIABLE),
            "silence": SILENCE,
        }

    def look_at(self, host: Host) -> None:
        """It is as it must be."""
        if not {"same", "sees", "pid", "clock", "caller"} <= host.told["hello"].keys():
            raise NotRun(f"host {host.name} has another takeback than this machine: its greeting is not ours")
        if other := host.differs(on_host.same()):
            raise NotRun(f"host {host.name} is not like this machine: {other}")
        if not host.told["hello"]["sees"]:
            raise NotRun(f"host {host.name} does not see {self.folder}: checkpoints need a folder that all hosts share")
        who = {"of_agent": host.node, "of_pid": host.told["hello"]["pid"]}
        self.recorder("agent_launched", attempt=local.ATTEMPT, **who, name=host.name)

    def set_clock(self, host: Host) -> None:
        """How far our monotonic clock is ahead of a host's: to half of the time that a word and its answer take."""
        asked = time.monotonic()
        host.tell(clock=True)
        self.hear_until(lambda: "clock" in host.told or host.over, START)
        if host.told["hello"]["clock"] != on_host.clock_of_machine() and "clock" in host.told:
            host.offset = (asked + time.monotonic()) / 2 - host.told["clock"]

    def await_all(self, word: str, seconds: float) -> None:
        """Wait until each host has said a word."""
        self.hear_until(lambda: any(h.over for h in self.hosts) or all(word in h.told for h in self.hosts), seconds)
        for host in sorted(self.hosts, key=lambda host: not host.over):  # one that is over is why others are not heard
            if word in host.told and not host.over:
                continue
            reason = f"host {host.name}: {host.why()}" if host.over else ""
            reason = reason or f"host {host.name} did not answer in {seconds:.0f} s"
            if "hello" in host.told:  # it is there, and as it must be: what failed is no property of the place
                raise EvidenceError(f"{reason}; see {host.errors}")
            raise NotRun(reason)

    def hear_until(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and (left := deadline - time.monotonic()) > 0:
            self.hear(left)

    def hear(self, seconds: float) -> None:
        """Take what comes within so many seconds, or a beat; each host hears from us once a beat."""
        if time.monotonic() >= self.beat:
            self.beat = time.monotonic() + BEAT
            for host in self.hosts:
                host.tell(beat=True)
        poll = select.poll()
        open_hosts = {host.lines.descriptor: host for host in self.hosts if not host.over}
        for descriptor in (*open_hosts, *self.bound):
            poll.register(descriptor, select.POLLIN)
        for host in [host for host in open_hosts.values() if host.unsaid]:
            poll.register(host.ear, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * min(seconds, BEAT))}
        if ready & set(self.bound):
            sys.exit("takeback: whoever asked for this run is gone")
        for descriptor, host in open_hosts.items():
            if host.unsaid and host.ear in ready:
                host.say()
            if descriptor in ready:
                self.take(host)

    def take(self, host: Host) -> None:
        """What has come from one host."""
        try:
            messages = host.lines.read()
            for message in messages or ():
                name, piece = wire.received(message, self.folder) or ("", b"")
                if name == f"records/host-{host.node}.jsonl":
                    for record in host.records.whole(piece):
                        self.answer(host, record)
                elif not name:
                    host.told |= message
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
            messages, host.flaw = None, f"what it sent is no message of ours: {error}"
        host.over = host.over or messages is None or "done" in host.told

    def watch(self) -> None:
        """Until all hosts have sent all; one that is lost is told, and the others have as long as after any failure."""
        deadline = time.monotonic() + self.spec["deadline"] + PATIENCE
        while left := [host for host in self.hosts if not host.over]:
            self.hear(BEAT)
            for host in [host for host in left if host.over and "done" not in host.told]:
                self.lose(host, host.why())
            if time.monotonic() > deadline:
                for host in left:
                    self.lose(host, "it did not end in time")
            self.look_around()

    def lose(self, host: Host, why: str) -> None:
        host.over = True
        host.alive.clear()
        self.recorder("error", attempt=local.ATTEMPT, type="LostHost", text=f"host {host.name}: {why}")
        self.tell_others(host, within=local.SETTLE)

    def tell_others(self, host: Host, **order: Any) -> None:
        for other in self.hosts:
            if other is not host and not other.over:
                other.tell(**order)

    def answer(self, host: Host, record: dict[str, Any]) -> None:
        """Do what a record of a host asks for."""
        match record["kind"]:
            case "fault_due":
                self.strike(record["fault"])
            case "fault_armed" if self.links is not None and record["action"] in on_host.NETWORK:
                host.cut, self.cut_until = True, time.monotonic() + (self.spec.get("notice") or local.SETTLE)
                self.links.put([host.node], "down")
                self.tell_others(host, struck=True)  # it can't tell itself
            case "fault_fired":
                self.tell_others(host, struck=True)
            case "exited":
                host.alive.discard(record["of_rank"])
                if record["status"] != 0:
                    self.tell_others(host, within=local.SETTLE)
            case "idle":
                host.idle = True
        for strike in self.strikes.values():
            strike.heard(host, record)

    def strike(self, name: str) -> None:
        """Let all hosts strike a fault's victims, once."""
        if name not in self.strikes:
            fault = next(fault for fault in self.spec["faults"] if fault["id"] == name)
            victims = set(victims_of(fault, self.spec["world"]))
            hosts = [host for host in self.hosts if victims & set(host.ranks)]
            self.strikes[name] = Strike(name, hosts, getattr(faults.get(fault["kind"]), "KILLS", False))

    def look_around(self) -> None:
        """What no host sees by itself: that one does not answer, that nothing can happen any more on any of them."""
        for strike in self.strikes.values():
            strike.go_on()
        living = [host for host in self.hosts if host.alive]
        if living and all(host.idle for host in living):
            for host in living:
                host.tell(alone=True)
        cut, others = ([host for host in self.hosts if host.cut is way] for way in (True, False))
        # What a host that was cut off has to tell comes over its link. Where all are, nobody is left to wait for.
        if cut and (not any(host.alive for host in others) if others else time.monotonic() > self.cut_until):
            for host in cut:
                host.cut = False
            self.links.put([host.node for host in cut], "up")
