"""Throw-away hosts on this machine, each with an sshd of its own: network namespaces that a bridge joins.

Each has a key of its own, which is known before anybody calls; a client key opens them all, for this run alone. They
end with the process that has started them, and leave nothing: no daemon, no namespace, no mount.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from takeback import network
from takeback.launchers import process
from takeback.launchers.place import Place

#: sshd_config(5). The keys lie in a folder that others can't read, under one that they can write: StrictModes.
CONFIG = """
Port 22
ListenAddress {address}
HostKey {keys}/{address}
AuthorizedKeysFile {keys}/client.pub
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
AllowAgentForwarding no
AllowTcpForwarding no
LogLevel ERROR
"""
#: It wants an empty /run/sshd, and the machine need not have one.
IN_PRIVATE = """
set -e
mount -t tmpfs takeback /run
mkdir /run/sshd
for folder in {hidden}; do mount -t tmpfs takeback "$folder"; done
exec "$@"
"""
PATIENCE = 20.0  # s for all of them to listen
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}


def unavailable() -> str | None:
    """Why there can be no such hosts here, or None."""
    for command in ("ssh", "ssh-keygen", "unshare"):
        if not shutil.which(command):
            return f"no {command} command"
    if not _sshd():
        return "no sshd command (package openssh-server)"
    return network.unavailable()


def _sshd() -> str | None:
    """Its whole path, as it wants to be called; it is seldom in a user's."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def hosts(count: int, keys: Path, hidden: Sequence[Path] = ()) -> Iterator[tuple[Place, network.Hosts]]:
    """Bring up ``count`` hosts; the calling thread is among them, on an address of its own, until the end of the block.

    Args:
        keys: an empty folder of this user's own; what the hosts have for a while lies there too.
        hidden: folders in whose place the hosts have an empty one.

    Raises:
        OSError: there can be none, or one did not come up; the message says why.
    """
    if reason := unavailable():
        raise OSError(reason)
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(network.surround({}, keys, count))
        addresses = [network.address(node) for node in range(count)]
        for name in ("client", *addresses):
            network.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(keys / name))
        known = [f"{name} {(keys / f'{name}.pub').read_text()}" for name in addresses]
        (keys / "known_hosts").write_text("".join(known))
        for node in range(count):
            stack.enter_context(daemon(there, node, keys, hidden))
        for address in addresses:
            wait_for(address)
        words = ["ssh", "-F", "none", "-l", "root", "-i", str(keys / "client"), "-oIdentitiesOnly=yes"]
        words += [f"-oUserKnownHostsFile={keys / 'known_hosts'}", "-oGlobalKnownHostsFile=none", "{host}"]
        yield Place(addresses, shlex.join(words), environment={**ENVIRONMENT, "TMPDIR": str(keys)}), there


@contextlib.contextmanager
def daemon(there: network.Hosts, node: int, keys: Path, hidden: Sequence[Path]) -> Iterator[None]:
    """The sshd of one host."""
    address = network.address(node)
    config = keys / f"{address}.conf"
    config.write_text(CONFIG.format(address=address, keys=keys))
    script = IN_PRIVATE.format(hidden=shlex.join(map(str, hidden)))
    words = ["unshare", "--mount", "sh", "-c", script, "sh", str(_sshd()), "-D", "-e", "-f", str(config)]

    def inside() -> None:
        process.die_with_parent(parent)
        there.enter(node)

    parent = os.getpid()
    with (keys / f"{address}.log").open("wb") as log:
        silent = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        started = subprocess.Popen(words, preexec_fn=inside, start_new_session=True, **silent)
    try:
        yield
    finally:
        started.kill()
        started.wait()


def wait_for(address: str) -> None:
    """Wait until the host listens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, 22), 1.0):
            return
        if time.monotonic() > deadline:
            raise OSError(f"the sshd of {address} did not come up in {PATIENCE:.0f} s")
        time.sleep(0.01)
