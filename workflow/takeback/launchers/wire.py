"""What goes between the supervisor and a host: a line of JSON each way, over whatever runs commands there.

A host sends its records and output as they are written, so that what it had to tell by then outlives it. All else that
it tells the supervisor stands in its own records: there is one way, and one order.
"""

from __future__ import annotations

import json
import os
import re
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TICK = 0.02  # s between two looks at what has been written
PIECE = 1 << 18  # bytes of a file in one message
#: Files that a host may send; it names them, and must not name any other.
SENT = re.compile(r"(records|stdout)/[A-Za-z0-9][A-Za-z0-9_.-]*")


def line(message: dict[str, Any]) -> bytes:
    return (json.dumps(message) + "\n").encode()


def send(descriptor: int, **message: Any) -> None:
    """One message; it waits where the other side does not read."""
    data = memoryview(line(message))
    while data:
        data = data[os.write(descriptor, data) :]


class Lines:
    """Messages from a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.rest = descriptor, bytearray()

    def read(self) -> list[dict[str, Any]] | None:
        """Those which are there whole, after one read; None at the end.

        Raises:
            ValueError: what came is no message.
        """
        data = os.read(self.descriptor, 1 << 20)
        return self.whole(data) if data else None

    def whole(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are whole now that ``data`` has come."""
        self.rest += data
        *whole, rest = self.rest.split(b"\n") if b"\n" in data else [self.rest]
        self.rest = bytearray(rest)
        messages = [json.loads(line) for line in whole]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a line that is no JSON object")
        return messages

    def wait(self, seconds: float) -> bool:
        """Whether there is something to read within so long."""
        return bool(select.select([self.descriptor], [], [], seconds)[0])


class Sender(threading.Thread):
    """Sends what is appended to the files of a host, from a thread: it may wait for long where a link is cut.

    Args:
        folder: with ``records`` and ``stdout``.
        own: name of the host's own records. What stands in them is sent after the ranks' records to which it answers.
        descriptor: where to.
    """

    def __init__(self, folder: Path, own: str, descriptor: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.own, self.descriptor = folder, f"records/{own}", descriptor
        self.sent: dict[str, int] = {}
        self.all_is_written, self.all_is_sent = threading.Event(), False

    def run(self) -> None:
        while not self.all_is_written.wait(TICK):
            self.send_new()
        self.send_new()
        self.all_is_sent = True

    def send_new(self) -> None:
        limit = (self.folder / self.own).stat().st_size
        for folder in ("stdout", "records"):
            for path in sorted((self.folder / folder).iterdir()):
                name = f"{folder}/{path.name}"
                if name != self.own and path.is_file() and SENT.fullmatch(name):
                    self.send_file(name, path.stat().st_size)
        self.send_file(self.own, limit)

    def send_file(self, name: str, size: int) -> None:
        """What of a file has not been sent, up to its ``size``."""
        for piece in self.pieces(name, size):
            # Not all output is text: what is none comes out as the bytes that it was.
            send(self.descriptor, file=name, text=piece.decode("utf-8", "surrogateescape"))

    def pieces(self, name: str, size: int) -> Iterator[bytes]:
        with (self.folder / name).open("rb") as file:
            while (at := self.sent.get(name, 0)) < size:
                file.seek(at)
                piece = file.read(min(PIECE, size - at))
                self.sent[name] = at + len(piece)
                yield piece


def received(message: dict[str, Any], folder: Path) -> tuple[str, bytes] | None:
    """Append a piece of a host's file to that in ``folder``; its name and what came, or None if it is no such message.

    Raises:
        ValueError: it is a file that no host has to send.
    """
    name = message.get("file")
    if name is None:
        return None
    if not SENT.fullmatch(name):
        raise ValueError(f"a host sent a file {name!r}")
    piece = message["text"].encode("utf-8", "surrogateescape")
    with (folder / name).open("ab") as file:
        file.write(piece)
    return name, piece


def by_our_clock(path: Path, seconds: float) -> None:
    """Move the monotonic times of a file of records by so many seconds; a torn line stays as it is."""
    lines = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            record = json.loads(line)
            line = (json.dumps({**record, "mono": record["mono"] + seconds}) + "\n").encode()
        except ValueError:
            pass
        lines.append(line)
    path.write_bytes(b"".join(lines))
