"""The client of the warm pool: hands over a run and waits for its exit status. Imports next to nothing."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from takeback import sources

PATIENCE = 60.0  # s until a pool that is still importing has answered
VARIABLE = "TAKEBACK_POOL"  # name of the pool's socket, in the environment of the workflow's jobs


def variable(environment: str | None) -> str:
    """The same for the pool that runs in an environment of its own."""
    return f"{VARIABLE}_{environment.upper()}" if environment else VARIABLE


def run(spec: dict[str, Any], folder: Path, root: Path, environment: str | None = None) -> int | None:
    """Run one leg in the warm pool, or in that of an ``environment``.

    The pool's supervisor writes to this process's own stdout and stderr, and ends its ranks when
    this process ends, however it ends: the connection closes then.

    Returns:
        The exit status, or None if there is no pool, or none that can serve this: start cold then.
    """
    name = os.environ.get(variable(environment))
    if not name:
        return None
    request = {"version": version(), "spec": spec, "folder": str(folder), "root": str(root)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(f"\0{name}")
            socket.send_fds(connection, [b"\0"], [1, 2])
            connection.sendall(json.dumps(request).encode() + b"\n")
            answers = connection.makefile("r", encoding="utf-8")
            if answers.readline() != "started\n":
                return None
            connection.sendall(b"go\n")
        except OSError:  # no such pool any more, or one that does not answer
            return None
        connection.settimeout(None)
        word, _, status = answers.readline().strip().partition(" ")
        if word != "status":
            print("takeback: the supervisor of this run ended without an answer; run snakemake again", flush=True)
            return 1
        return int(status)


def version() -> list[str]:
    """What pool and client must have in common: the sources of all that a run is made of."""
    return [sources.digest("trainer"), sources.digest("nemesis")]
