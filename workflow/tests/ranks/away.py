"""Hosts that are there before a leg is launched and after it, and no descendants of a launcher: as real ones are."""

import contextlib
import json
import subprocess
import sys

import yaml

# A process that holds the hosts, tells where they are, and waits to be closed.
HOLDER = """
import dataclasses, json, os, signal, sys, tempfile
from pathlib import Path
from takeback.launchers import process, sshd
process.adopt_orphans()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that it adopts
with tempfile.TemporaryDirectory(prefix="takeback-ssh-") as keys:
    with sshd.hosts(int(sys.argv[1]), Path(keys), [Path(name) for name in sys.argv[2:]]) as (place, _):
        told = {"pid": os.getpid(), "place": dataclasses.asdict(place), "keys": keys}
        print(json.dumps(told), flush=True)
        sys.stdin.read()
    process.end_descendants()
"""


class Away:
    """Running hosts: ``place`` as a file of hosts has it, ``keys``, and ``inside``, words that run a command there."""

    def __init__(self, told):
        self.place, self.keys, self.pid = told["place"], told["keys"], told["pid"]
        self.inside = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    def file(self, path, **changes):
        """Write a file of hosts."""
        path.write_text(yaml.safe_dump({**self.place, **changes}))
        return path


@contextlib.contextmanager
def running_hosts(count, *hidden):
    """Hosts until the block is left; they don't see the folders ``hidden``."""
    words = [sys.executable, "-c", HOLDER, str(count), *map(str, hidden)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            yield Away(json.loads(holder.stdout.readline()))
        finally:
            holder.stdin.close()
