"""A free port; ``python -m takeback.launchers.ports`` prints one."""

from __future__ import annotations

import random
import socket

#: The kernel takes ports of its own choice from above this range (ip_local_port_range): one that is free here stays so.
PORTS = range(20000, 32000)


def free_port() -> int:
    """A port of this machine on which nobody listens, and which the kernel gives to nobody."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port


def free_ports(count: int) -> list[int]:
    """As many of them, each another."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return [*found]


if __name__ == "__main__":
    print(free_port())
