"""A free port; ``python -m takeback.launchers.ports`` prints one, which then nobody holds."""

from __future__ import annotations

import random
import socket

#: The kernel takes ports of its own choice from above this range (ip_local_port_range): one that is free here stays so.
PORTS = range(20000, 32000)

#: Bound until this process ends, so that nobody else finds them free before those for whom they are listen there.
_held: list[socket.socket] = []


def free_port() -> int:
    """A port of this machine that nobody has, and that neither the kernel nor this function gives to anybody else.

    Whoever sets ``SO_REUSEADDR``, as servers do, can listen there (socket(7)).
    """
    while True:
        held, port = socket.socket(), random.choice(PORTS)
        try:
            held.bind(("", port))  # without that option: not where another holds it
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(held)
        return port


if __name__ == "__main__":
    print(free_port())
