"""The cloud's own notice that a machine is taken back, read from its metadata server; after the grace, SIGKILL.

A server on this machine answers as GCE's or EC2's does; its address stands in the variable that the
vendor's own libraries read. No signal is sent: a trainer that does not ask never knows.
"""

from __future__ import annotations

import http.server
import json
import mmap
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from takeback import faults
from takeback.faults import Injection, Surroundings
from takeback.launchers.process import die_with_parent

PARAMETERS = {"cloud": "gce", "grace": 5.0}  # gce or ec2; s
ENDS_BY = [{"signal": 9}, {"status": 0}, {"status": 143}]
PROVES = {"answers": "notice"}


class Metadata(Surroundings):
    """The server, in a process of its own; one shared byte says whether the notice has been given."""

    def __init__(self, cloud: str) -> None:
        self.cloud, self.given, supervisor = cloud, mmap.mmap(-1, 1), os.getpid()
        # A thread a question: a rank that is stopped between connecting and asking must not hold up the others.
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(cloud, self.given))
        self.port = server.server_address[1]
        self.pid = os.fork()
        if not self.pid:
            try:
                die_with_parent(supervisor)
                server.serve_forever()
            finally:
                os._exit(1)
        server.server_close()

    def variables(self, rank: int) -> dict[str, str]:
        """The address, where Google's or Amazon's libraries look for it."""
        address = f"127.0.0.1:{self.port}"
        if self.cloud == "gce":
            return {"GCE_METADATA_HOST": address}
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{address}"}


def handler(cloud: str, given: mmap.mmap) -> type[http.server.BaseHTTPRequestHandler]:
    """What the metadata server of a cloud answers, before and after the notice."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gone = given[0] == 1
            if cloud == "gce" and self.path == "/computeMetadata/v1/instance/preempted":
                self.answer(200, "TRUE" if gone else "FALSE")
            elif cloud == "ec2" and self.path == "/latest/meta-data/spot/instance-action" and gone:
                self.answer(200, json.dumps({"action": "terminate", "time": "2030-01-01T00:00:00Z"}))
            else:
                self.answer(404, "")

        def answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def surround(fault: dict[str, Any], folder: Path, world: int) -> Iterator[Metadata]:
    """Serve the metadata of a machine that may be taken back."""
    yield Metadata(faults.parameters(fault)["cloud"])


def strike(injection: Injection) -> Iterator[float]:
    """Give the notice, let those who hold themselves go on, and kill who is still there after the grace."""
    around = injection.around
    around.given[0] = 1
    injection.seen["answers"] = "notice" if answers(around) else "nothing"
    injection.let_go()
    yield injection.parameters["grace"]
    injection.kill()


def answers(around: Metadata) -> bool:
    """Whether the server now gives the notice to whoever asks."""
    paths = {"gce": "/computeMetadata/v1/instance/preempted", "ec2": "/latest/meta-data/spot/instance-action"}
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{around.port}{paths[around.cloud]}", timeout=5) as answer:
            return answer.read() not in (b"", b"FALSE")
    except OSError:  # no proof, and the verdict says so
        return False
