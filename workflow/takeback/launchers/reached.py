"""How this host is reached by the others: its address, and the interface of its ranks' own connections."""

from __future__ import annotations

import os
import socket

import psutil

LOOPBACK = "127."
ELSEWHERE = ("198.51.100.1", 9)  # an address of nobody (RFC 5737): to connect a datagram socket sends nothing


def caller() -> str:
    """The supervisor's address, as ssh(1) tells it; empty where it was something else."""
    return _told_by_ssh()[0]


def at() -> str:
    """This host's own address: the one that was called by ssh, else that of its name, else that of its way out.

    Debian gives a machine's own name 127.0.1.1, at which no other finds it (Debian Reference, 5.1.1).
    """
    if called := _told_by_ssh()[1]:
        return called
    named = _of_name()
    return (_way_out() if named.startswith(LOOPBACK) else named) or named


def interface(address: str) -> dict[str, str]:
    """Variables that bring gloo and NCCL to the interface of ``address``, if the host's name does not, nor the user.

    gloo takes the address of the host's name (torch, ProcessGroupGloo::createDefaultDevice).
    """
    if address.startswith(LOOPBACK) or not _of_name().startswith(LOOPBACK):
        return {}
    mine = [name for name, all_of_it in psutil.net_if_addrs().items() if address in {one.address for one in all_of_it}]
    wanted = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), mine[0]) if mine else {}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def _told_by_ssh() -> tuple[str, str]:
    """The supervisor's address and this host's, from SSH_CONNECTION (ssh(1))."""
    told = os.environ.get("SSH_CONNECTION", "").split()
    return (told[0], told[2]) if len(told) == 4 else ("", "")


def _of_name() -> str:
    """The address of this host's name; the loopback one for a name that nobody knows."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return f"{LOOPBACK}0.0.1"


def _way_out() -> str:
    """The address from which a packet to elsewhere would go; empty without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        try:
            datagrams.connect(ELSEWHERE)
        except OSError:
            return ""
        return datagrams.getsockname()[0]
