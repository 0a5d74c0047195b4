"""A warm pool for tests, which otherwise is part of a running workflow."""

import contextlib
import subprocess
import sys

# A process that stands for the workflow: it starts the pool, tells its name, and waits to be closed.
WORKFLOW = """
import os, sys
from takeback import pool, pool_client
pool.start()
print(os.environ[pool_client.VARIABLE], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def running_pool():
    """Name of the socket of a pool that runs until the block is left."""
    words = [sys.executable, "-c", WORKFLOW]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as workflow:
        yield workflow.stdout.readline().strip()
        workflow.stdin.close()
