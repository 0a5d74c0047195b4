"""Hosts for the ranks of one run: network namespaces joined by a bridge, all without a name.

Nothing is made in the machine's own namespace. The bridge lies in one that the supervisor has entered, each rank lives
in one of its own; they are held by descriptors and by the processes in them, so that they end with the last of these,
however that ends (network_namespaces(7)).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from takeback.faults import Injection, Surroundings

CLONE_NEWNET = 0x40000000  # sched.h; Python has os.unshare and os.setns from 3.12 on
SUBNET = "10.77.0"  # seen by the ranks alone
SUPERVISOR, FIRST = 1, 11  # last number of an address: of the supervisor, of rank 0
DISCARD = 9  # a port on which nobody listens: a host that is reached refuses, one that is not says nothing
PATIENCE = 0.25  # s for a packet and its answer
UNHURRIED = 5.0  # s for the same where there will be one: a busy machine must not be taken for a link that is cut
_libc = ctypes.CDLL(None, use_errno=True)


class Hosts(Surroundings):
    """Each rank on a host of its own: address ``10.77.0.(11 + rank)`` on ``eth0``; the supervisor is ``10.77.0.1``.

    Args:
        namespaces: a descriptor of each rank's namespace.
    """

    def __init__(self, namespaces: list[int]) -> None:
        self.namespaces = namespaces

    def variables(self, rank: int) -> dict[str, str]:
        """Where the store is, and the interface that gloo takes (it would look for the name of the machine)."""
        return {
            "TAKEBACK_HOST": address(rank),
            "MASTER_ADDR": address(),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
        }

    def enter(self, rank: int) -> None:
        """Move the calling thread to the host of ``rank``."""
        enter(self.namespaces[rank])

    def cut(self, injection: Injection) -> None:
        """Take the links of the victims down, on the side of the bridge; what is seen of it goes into the receipt."""
        ranks = sorted({victim.node for victim in injection.victims})
        injection.seen["answered_before"] = all(answers(address(rank), UNHURRIED) for rank in ranks)
        self.put(ranks, "down")
        injection.seen["link"] = "/".join(sorted({state(link(rank)) for rank in ranks}))

    @staticmethod
    def put(ranks: list[int], how: str) -> None:
        """Set the links of these ``up`` or ``down``."""
        ip(*(f"link set {link(rank)} {how}" for rank in ranks))

    def ask(self, injection: Injection) -> None:
        """Send a packet to every victim; whether any of them answers goes into the receipt."""
        injection.seen["answers"] = any(answers(address(victim.node)) for victim in injection.victims)

    def delay(self, injection: Injection, milliseconds: float) -> None:
        """Make all that leaves the victims late; their queues, and the way of a packet, go into the receipt."""
        ranks = sorted({victim.node for victim in injection.victims})
        bridge = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        queues = set()
        for rank in ranks:
            enter(self.namespaces[rank])
            run("tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", f"{milliseconds}ms")
            queues |= {queue["kind"] for queue in json.loads(run("tc", "-json", "qdisc", "show", "dev", "eth0"))}
        enter(bridge)
        os.close(bridge)
        injection.seen["queue"] = "/".join(sorted(queues))
        injection.seen["slower"] = all(self.way(rank) >= milliseconds / 1000 for rank in ranks)

    def way(self, rank: int) -> float:
        """Seconds of a packet to a host and of its answer."""
        began = time.monotonic()
        return time.monotonic() - began if answers(address(rank)) else 0.0


@contextlib.contextmanager
def surround(fault: dict[str, Any], folder: Path, world: int) -> Iterator[Hosts]:
    """Join ``world`` hosts by a bridge; the calling thread is in the bridge's namespace until the end of the block.

    Of two faults that surround one run the ranks and the supervisor live on the hosts of the second.

    Raises:
        OSError: the kernel gives no namespace, or ``ip`` could not do its part.
    """
    with contextlib.ExitStack() as stack:
        outside = here(stack)
        stack.callback(enter, outside)
        namespaces = [unshare(stack) for _ in range(world)]
        bridge = unshare(stack)
        commands = ["link set lo up", "link add bridge0 type bridge", f"addr add {address()}/24 dev bridge0"]
        for rank, namespace in enumerate(namespaces):
            peer = f"peer name eth0 netns /proc/{os.getpid()}/fd/{namespace}"
            commands += [f"link add {link(rank)} type veth {peer}", f"link set {link(rank)} master bridge0 up"]
        ip(*commands, "link set bridge0 up")
        for rank, namespace in enumerate(namespaces):
            enter(namespace)
            ip("link set lo up", f"addr add {address(rank)}/24 dev eth0", "link set eth0 up")
        enter(bridge)
        yield Hosts(namespaces)


def take_own_ports() -> None:
    """From now on the calling thread and what it starts have this machine's IPv4 addresses to themselves.

    All ports there are theirs, and nobody else is reached, on this machine or elsewhere.

    Where that can't be had (it takes root), or only a server elsewhere knows this machine by its name, nothing changes:
    the ports are everybody's, as they are for any program.
    """
    if unavailable():
        return
    told = [one for all_of_it in psutil.net_if_addrs().values() for one in all_of_it if one.family == socket.AF_INET]
    addresses = {one.address for one in told}
    with contextlib.ExitStack() as stack:
        outside = here(stack)
        unshare(stack)
        try:
            others = (address for address in addresses if not address.startswith("127."))
            ip("link set lo up", *(f"addr add {address}/32 dev lo" for address in others))
            named = socket.gethostbyname(socket.gethostname())
            if named not in addresses and not named.startswith("127."):
                raise OSError(f"{named} is no address of this machine")
        except OSError:
            enter(outside)


def unavailable() -> str | None:
    """Why there can be no such hosts here, or None."""
    if not shutil.which("ip"):
        return "no ip command (package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tries = (
        ("ip", "link", "add", "link0", "type", "bridge"),
        ("ip", "link", "add", "link0", "type", "veth"),
        ("nsenter", f"--net=/proc/{os.getpid()}/ns/net", "true"),  # root of a user namespace can't come back
    )
    return next(filter(None, (_tried(*words) for words in tries)), None)


def no_netem() -> str | None:
    """Why packets can't be delayed here, or None."""
    if not shutil.which("tc"):
        return "no tc command (package iproute2)"
    return _tried("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")


def _tried(*words: str) -> str | None:
    """Why a command fails in a namespace of its own, or None."""
    try:
        run("unshare", "--net", *words)
    except OSError as error:
        return f"{' '.join(words)}: {error}"
    return None


def state(interface: str) -> str:
    """``up``, ``down``, ``lowerlayerdown``: a link here, as the kernel tells it (operstate, RFC 2863)."""
    return json.loads(run("ip", "-json", "link", "show", interface))[0]["operstate"].lower()


def answers(host: str, patience: float = PATIENCE) -> bool:
    """Whether a packet to an address is answered: by a refusal, since nobody listens on the port."""
    try:
        socket.create_connection((host, DISCARD), patience).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def address(rank: int | None = None) -> str:
    """Of a rank, or of the supervisor."""
    return f"{SUBNET}.{SUPERVISOR if rank is None else FIRST + rank}"


def link(rank: int) -> str:
    """Name of a host's link on the side of the bridge."""
    return f"rank{rank}"


def ip(*commands: str) -> None:
    """Let ``ip`` do all these in the namespace of the calling thread."""
    run("ip", "-batch", "-", stdin="\n".join(commands))


def run(*words: str, stdin: str = "") -> str:
    """What a command says; OSError with its reason if it fails."""
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{words[0]}: {' '.join(done.stderr.split())}")
    return done.stdout


def unshare(stack: contextlib.ExitStack) -> int:
    """Enter a new namespace, and return a descriptor of it, closed with the stack."""
    if _libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    return here(stack)


def here(stack: contextlib.ExitStack) -> int:
    descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def enter(namespace: int) -> None:
    """Move the calling thread to a namespace, by a descriptor of it (setns(2))."""
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
