"""How this host is reached by the others: its address, and the interface of its ranks' own connections."""

from __future__ import annotations

import os
import socket
from functools import cache

import psutil

LOOPBACK = "127."
INTERFACE = "GLOO_SOCKET_IFNAME"
ELSEWHERE = ("198.51.100.1", 9)  # an address of nobody (RFC 5737): to connect a datagram socket sends nothing


def caller() -> str:
    """The supervisor's address, as ssh(1) tells it; empty where it was something else."""
    return _told_by_ssh()[0]


def at() -> str:
    """This host's own IPv4 address: the one that ssh called, else that of its name, if an interface has it; else that
    of the interface which the user named for gloo, else the one from which it reaches others, else any.

    Debian gives a machine's own name 127.0.1.1, at which no other finds it (Debian Reference, 5.1.1).
    """
    called = _told_by_ssh()[1]
    told = called if _holder(called) else _of_name()
    return told or _of_interface() or _of_way_out() or _any() or f"{LOOPBACK}0.0.1"


def interface(address: str) -> dict[str, str]:
    """The variable that brings gloo to the interface of ``address``, unless the host's name or the user does.

    gloo takes the address of the host's name (torch, ProcessGroupGloo::createDefaultDevice); NCCL does not.
    """
    if INTERFACE in os.environ or _of_name():
        return {}
    holder = _holder(address)
    return {INTERFACE: holder} if holder else {}


def _told_by_ssh() -> tuple[str, str]:
    """The supervisor's address and this host's, from SSH_CONNECTION (ssh(1))."""
    told = os.environ.get("SSH_CONNECTION", "").split()
    return (told[0], told[2]) if len(told) == 4 else ("", "")


@cache
def _of_name() -> str:
    """The address of this host's name, if an interface has it that others can reach; empty otherwise."""
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return named if _holder(named) else ""


def _holder(address: str) -> str:
    """The interface that has it; empty where none has: that of a login is inherited by what runs elsewhere, and that of
    a name may be a gateway's.
    """
    return next((name for name, own in _addresses().items() if address in own), "")


def _of_interface() -> str:
    return next(iter(_addresses().get(os.environ.get(INTERFACE, ""), [])), "")


def _of_way_out() -> str:
    """The address from which a packet to elsewhere would go; empty without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        try:
            datagrams.connect(ELSEWHERE)
        except OSError:
            return ""
        return datagrams.getsockname()[0]


def _any() -> str:
    return next((address for own in _addresses().values() for address in own), "")


def _addresses() -> dict[str, list[str]]:
    """IPv4 addresses of the interfaces that are up, without those that mean this host on every host."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = {name: [one.address for one in all_of_it if one.family == socket.AF_INET] for name, all_of_it in
             psutil.net_if_addrs().items() if name in up}  # fmt: skip
    return {name: kept for name, own in found.items() if (kept := [a for a in own if not a.startswith(LOOPBACK)])}
