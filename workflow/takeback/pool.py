"""The warm pool: one process that has imported all that a rank needs, and forks a supervisor a run.

Starting Python and importing torch is nearly the whole cost of a short run. The pool pays it once a
workflow. It must stay clean, or its forks hang: it runs no parallel region and touches no device.

It listens on a socket of the kernel's abstract namespace, which leaves no file behind; it accepts its
own user only (SO_PEERCRED, unix(7)); it ends with the workflow that started it (a pidfd), and its
supervisors end with it. A request that it can't serve makes the client start cold.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

from takeback import backends, environments, evidence, leg_job, machine, pool_client
from takeback.errors import TakebackError
from takeback.launchers import local, process

PATIENCE = 10.0  # s that a client has to say what it wants


def is_wanted(config: dict[str, Any]) -> bool:
    """Whether a workflow is to have a pool: ``--config warm=false`` arrives as a text."""
    return str(config.get("warm", True)).lower() not in ("false", "no", "off", "0")


def start(environment: str | None = None) -> None:
    """Start a pool for this process's jobs, which find it through their environment. Returns at once.

    Args:
        environment: if it is to serve runs in an environment of their own, its name (:mod:`takeback.environments`).

    Raises:
        Unusable: that is not there.
    """
    python = environments.usable(environment) if environment else sys.executable
    around = environments.variables(environment) if environment else dict(os.environ)
    for backend in (backends.get(name) for name in backends.names()):
        if environment and environment == backend.ENVIRONMENT:
            around |= backend.environment(1)  # of these some are read when its modules are imported
    name = f"takeback-{os.getpid()}-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(f"\0{name}")
        listening.listen(128)
        words = [
            str(python),
            "-m",
            "takeback",
            "pool",
            "--socket",
            str(listening.fileno()),
            "--parent",
            str(os.getpid()),
        ]
        subprocess.Popen(
            words, pass_fds=[listening.fileno()], env={**around, **leg_job.IMPORT_TIME}, start_new_session=True
        )
    os.environ[pool_client.variable(environment)] = name


def start_all(others: Collection[str]) -> None:
    """Start our own pool, and one in each of the ``others`` that is there."""
    start()
    for name in others:
        with contextlib.suppress(environments.Unusable):
            start(name)


def serve(descriptor: int, parent: int) -> None:
    """Serve the listening socket ``descriptor`` until the process ``parent`` has ended."""
    bound = process.descriptor_of_parent(parent)
    process.adopt_orphans()
    version = pool_client.version()  # before the imports: what is edited meanwhile is another version
    warm()
    listening = socket.socket(fileno=descriptor)
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    poll.register(bound, select.POLLIN)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the poll, so that ended supervisors are reaped
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    poll.register(wake_r, select.POLLIN)
    try:
        while True:
            ready = {number for number, _ in poll.poll()}
            if bound in ready:
                break
            if wake_r in ready:
                os.read(wake_r, 512)
                reap()
            if descriptor in ready:
                connection, _ = listening.accept()
                fork(connection, listening, version)
                connection.close()
    except BaseException:
        traceback.print_exc()
    finally:
        process.end_descendants()
        # With the socket still open: whoever finds it closed may rely on it that the pool has ended.
        sys.stderr.flush()
        os._exit(0)


def warm() -> None:
    """Import and read all that supervisor and ranks need, so that their forks have it. Runs no kernel."""
    # Of backends that share an environment any one stands for all.
    here = (backends.get(name) for name in backends.names())
    mine = [backend for backend in here if os.environ.get(environments.VARIABLE) == backend.ENVIRONMENT]
    getattr(mine[0], "preload", local.preload)()
    # What a supervisor needs to write evidence; pyarrow asks for pandas as soon as it is given a list.
    import pandas  # noqa: F401
    import pyarrow.pandas_compat
    import pyarrow.parquet  # noqa: F401

    for table in evidence.TABLES:
        evidence.arrow_schema(table)
    # Asks git and reads the metadata of packages: once is enough.
    machine.source()
    machine.software()
    machine.cpu()


def reap() -> None:
    """Take note of supervisors that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def fork(connection: socket.socket, listening: socket.socket, version: list[str]) -> None:
    """A supervisor for one client."""
    pool = os.getpid()
    if os.fork():
        return
    status = 70
    try:
        bound = process.descriptor_of_parent(pool)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listening.close()
        status = answer(connection, version, bound)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def answer(connection: socket.socket, version: list[str], pool: int) -> int:
    """Read one request and run it; what can't be served is answered with ``cold``."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        return 1
    connection.settimeout(PATIENCE)
    lines = connection.makefile("r", encoding="utf-8")
    try:
        _, descriptors, *_ = socket.recv_fds(connection, 1, 2)
        request = json.loads(lines.readline())
        spec, folder, root = request["spec"], Path(request["folder"]), Path(request["root"])
        same = request["version"] == version and leg_job.threads(spec).items() <= os.environ.items()
        serves = same and len(descriptors) == 2
    except (OSError, ValueError, KeyError, TypeError):
        serves = False
    connection.sendall(b"started\n" if serves else b"cold\n")
    # The client may have lost its patience, and be at work in the same folder by now: it must say that it waits.
    if not serves or lines.readline() != "go\n":
        return 0
    connection.settimeout(None)
    for number, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    status = 0
    try:
        leg_job.run(spec, folder, root, [connection.fileno(), pool])
    except TakebackError as error:
        print(f"takeback: {error}", file=sys.stderr)
        status = 1
    connection.sendall(f"status {status}\n".encode())
    return status
