"""An object server for the checkpoints of one leg: OpenStack Swift with its S3 interface, in one process.

Swift is what runs in production clouds: a PUT is a temporary file, fsync and a link, so that an object is there whole
or not at all; ``If-None-Match: *`` and multipart uploads work; an object can be read once its PUT was answered, while
the listing of its bucket is a database of its own, told after it, that may lag behind. What is not like a cloud: one
replica, one process for all four services, and none of the daemons that repair (https://docs.openstack.org/swift).

All of it is in the leg's folder: a server that is started on a copy has the same objects. Swift keeps what it knows of
an object in extended attributes, which a copy must keep (:func:`copy`).
"""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takeback.errors import EvidenceError
from takeback.faults import Surroundings
from takeback.launchers import process

LOOPBACK = "127.0.0.1"
BUCKET = "checkpoints"
ACCOUNT = KEY = "takeback"  # no secret: the server is reached from this machine alone, and ends with the leg
START = 50.0  # s until it listens; hosts that hear nothing for a minute believe that nobody is there
SERVICES = ("account", "container", "object")
#: ``swift.conf``: where an object lies depends on the affixes, so they are the same for ever.
SHARED = f"[swift-hash]\nswift_hash_path_prefix = {ACCOUNT}\nswift_hash_path_suffix = {ACCOUNT}\n"
#: A machine under load is slow, not broken: a listing must not lag behind for want of a second.
DEFAULTS = """[DEFAULT]
swift_dir = {etc}
devices = {folder}
mount_check = false
fallocate_reserve = 0
log_level = CRITICAL
conn_timeout = 30
node_timeout = 30
container_update_timeout = 30
"""
STORAGE = """[pipeline:main]
pipeline = {service}-server
[app:{service}-server]
use = egg:swift#{service}
"""
PROXY = f"""[pipeline:main]
pipeline = catch_errors gatekeeper s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:tempauth]
use = egg:swift#tempauth
user_{ACCOUNT}_{ACCOUNT} = {KEY} .admin
""" + "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in ("catch_errors", "gatekeeper", "s3api", "slo"))


def unavailable(folder: Path) -> str | None:
    """Why no object server can keep its objects in ``folder``, or None."""
    if importlib.util.find_spec("swift") is None:
        return "no object server (swift is not installed: python -m pip install -r envs/objects.txt)"
    try:
        os.setxattr(folder, "user.takeback", b"")
        os.removexattr(folder, "user.takeback")
    except OSError as error:
        return f"no object server: {folder} has no extended attributes: {error.strerror}"
    return None


@contextmanager
def serve(folder: Path, host: str = LOOPBACK) -> Iterator[dict[str, str]]:
    """Serve the objects that are kept in ``folder``; nothing of it outlives the calling thread, however that ends.

    The server is killed at the end: what it has answered is on disk.

    Args:
        folder: empty, or a :func:`copy` of one that a server has used.
        host: address of this machine to listen on; the kernel picks the port.

    Yields:
        Environment of whoever uses it, in the standard variables of AWS: ``s3://checkpoints`` is there.

    Raises:
        EvidenceError: it did not start; its output says why.
    """
    command = [sys.executable, "-W", "ignore", "-m", "takeback.objectstore", str(folder), host, str(os.getpid())]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        ready, _, _ = select.select([server.stdout], [], [], START)
        port = server.stdout.readline().strip() if ready else ""
        if not port:
            if not ready:
                server.kill()
            raise EvidenceError(f"the object server of {folder} did not start: status {server.wait()}")
        yield {
            "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": f"{ACCOUNT}:{ACCOUNT}",
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@dataclass(frozen=True)
class Served(Surroundings):
    """A server around the ranks of a run."""

    environment: dict[str, str]

    def variables(self, rank: int) -> dict[str, str]:
        return self.environment


@contextmanager
def surround(folder: Path, host: str) -> Iterator[Served]:
    """Serve the checkpoints of a leg while its ranks run."""
    import s3fs  # noqa: F401 (forks need not import it each; it starts no thread)

    with serve(folder / "checkpoints", host) as environment:
        yield Served(environment)


def address(spec: dict[str, Any], folder: Path) -> str:
    """Where a leg's trainer keeps its checkpoints: a folder, or the URL of :func:`surround`'s bucket."""
    if spec["trainer"].get("store") == "object":
        return f"s3://{BUCKET}/run"
    return str((folder / "checkpoints").resolve())  # a link, on a host that shares them


def copy(source: str | Path, target: str | Path) -> None:
    """Copy a file and its extended attributes, not its mode: the copy can be written (for :func:`shutil.copytree`)."""
    shutil.copyfile(source, target)
    for name in os.listxattr(source):
        if name.startswith("user."):
            os.setxattr(target, name, os.getxattr(source, name))


def main(folder: Path, host: str, parent: int) -> None:
    """Serve until the parent ends; the port is printed once requests are answered."""
    process.die_with_parent(parent)
    from swift.common.utils import monkey_patch

    monkey_patch()  # eventlet's: before anything takes the socket module as it is
    import eventlet.wsgi
    from swift.common import wsgi
    from swift.common.http_protocol import SwiftHttpProtocol
    from swift.common.ring import RingData
    from swift.common.utils import set_swift_dir

    etc = folder / "etc"
    for path in (etc, folder / "disk"):
        path.mkdir(exist_ok=True)
    (etc / "swift.conf").write_text(SHARED)
    sockets = {name: eventlet.listen((host, 0)) for name in (*SERVICES, "proxy")}
    for name in SERVICES:
        port = sockets[name].getsockname()[1]
        device = {"id": 0, "region": 1, "zone": 1, "weight": 1.0, "device": "disk", "meta": ""}
        device |= {"ip": host, "port": port, "replication_ip": host, "replication_port": port}
        RingData([[0]], [device], part_shift=32).save(str(etc / f"{name}.ring.gz"))
    set_swift_dir(str(etc))
    threads = []
    for name, socket in sockets.items():
        text = DEFAULTS.format(etc=etc, folder=folder) + (PROXY if name == "proxy" else STORAGE.format(service=name))
        app = wsgi.loadapp(wsgi.ConfigString(text), global_conf={"log_name": name})
        how = {"protocol": SwiftHttpProtocol, "capitalize_response_headers": False}  # as swift.common.wsgi.run_server
        threads.append(eventlet.spawn(eventlet.wsgi.server, socket, app, wsgi.NullLogger(), **how))
    made = wsgi.make_pre_authed_request({}, "PUT", f"/v1/AUTH_{ACCOUNT}/{BUCKET}").get_response(app)
    if not made.is_success:
        sys.exit(f"takeback: no bucket: {made.status}")
    print(sockets["proxy"].getsockname()[1], flush=True)
    for thread in threads:
        thread.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
