"""Hosts that are there before a leg is launched and after it, and no descendants of a launcher: as real ones are."""

import contextlib
import json
import os
import subprocess
import sys

import yaml
from launch import command_of
from takeback import pool_client
from takeback.launchers import place
from warm import running_pool

# A process that holds the hosts, tells where they are, and waits to be closed.
HOLDER = """
import dataclasses, json, os, signal, sys, tempfile
from pathlib import Path
from takeback.launchers import process, sshd
process.adopt_orphans()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that it adopts
with tempfile.TemporaryDirectory(prefix=f"takeback-ssh-{os.getpid()}-") as keys:
    with sshd.hosts(int(sys.argv[1]), Path(keys), [Path(name) for name in sys.argv[2:]]) as (place, _):
        told = {"pid": os.getpid(), "place": dataclasses.asdict(place), "keys": keys}
        print(json.dumps(told), flush=True)
        sys.stdin.read()
    process.end_descendants()
"""


class Away:
    """Running hosts.

    Attributes:
        place: what a file of hosts says of them.
        keys: folder of their keys.
        inside: words that run a command among them.
        file: the file of hosts that the supervisors of the legs read, whoever starts them.
        pool: a warm pool among them; where it listens is known there alone (network_namespaces(7)).
    """

    def __init__(self, told, file):
        self.place, self.keys, self.pid, self.file = told["place"], told["keys"], told["pid"], file
        self.inside = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    def write(self, **changes):
        """Write the file of hosts."""
        self.file.write_text(yaml.safe_dump({**self.place, **changes}))

    def command(self, leg, runs):
        return [*self.inside, *command_of(leg, runs)]

    @property
    def environment(self):
        """Of a process that starts a leg by itself."""
        return {**os.environ, place.VARIABLE: str(self.file)}

    def run(self, leg, runs, **changes):
        """The finished process of a leg on these hosts."""
        self.write(**changes)
        warm = {**self.environment, pool_client.VARIABLE: self.pool}
        words = self.command(leg, runs)
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=warm)


@contextlib.contextmanager
def running_hosts(count, file, *hidden):
    """Hosts until the block is left; they don't see the folders ``hidden``."""
    words = [sys.executable, "-c", HOLDER, str(count), *map(str, hidden)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            away = Away(json.loads(holder.stdout.readline()), file)
            with running_pool(*away.inside, **{place.VARIABLE: str(file)}) as away.pool:
                yield away
        finally:
            holder.stdin.close()
