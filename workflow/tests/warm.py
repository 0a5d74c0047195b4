"""A warm pool for tests, which otherwise is part of a running workflow."""

import contextlib
import os
import socket
import subprocess
import sys

# A process that stands for the workflow: it starts the pool, tells its name, and waits to be closed.
WORKFLOW = """
import os, sys
from takeback import pool, pool_client
environment = {environment!r}
pool.start(environment)
print(os.environ[pool_client.variable(environment)], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def running_pool(*inside, environment=None, **variables):
    """Name of the socket of a pool that runs until the block is left, and has ended after it.

    ``inside`` are words that run a command where it shall be, if not here; ``environment``: that of a backend.
    """
    words = [*inside, sys.executable, "-c", WORKFLOW.format(environment=environment)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env={**os.environ, **variables}, **pipes) as workflow:
        name = workflow.stdout.readline().strip()
        try:
            yield name
        finally:
            workflow.stdin.close()
    while takes_connections(name):
        os.sched_yield()


def takes_connections(name):
    """Whether a pool still listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(f"\0{name}") == 0
