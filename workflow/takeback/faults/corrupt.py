"""A file of the checkpoints is not what was written: bit rot, a torn write, a lost file, a restored backup.

Of the reference trainer's files, once all ranks have ended (point ``end``).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from takeback.faults import Injection

PARAMETERS = {"how": "flip_bit", "file": "newest"}
CHOICES = {
    "how": ["flip_bit", "truncate", "empty", "torn", "missing", "stale", "incomplete"],
    "file": ["newest", "previous", "oldest", "pointer"],
}
ENDS_BY = []
PROVES = {"changed": True}
POINTER = "latest"


def strike(injection: Injection) -> None:
    """Do it, and compare the digests of all files before and after."""
    folder, given = injection.checkpoints, injection.parameters
    before = digests(folder)
    saved = sorted(name for name in before if name.startswith("step-"))
    at = {"newest": -1, "previous": -2, "oldest": 0}
    name = POINTER if given["file"] == "pointer" else (saved[at[given["file"]] :] or [""])[0]
    if name in before:
        damage(folder / name, given["how"])
    after = digests(folder)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    injection.seen["changed"] = bool(changed)
    injection.seen["files"] = changed
    injection.seen["destroyed"] = [int(name[5:13]) for name in changed if name in saved]


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def damage(path: Path, how: str) -> None:
    """One way of losing what was written."""
    data, middle = path.read_bytes(), path.stat().st_size // 2
    match how:
        case "flip_bit":
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case "truncate":
            os.truncate(path, middle)
        case "empty":
            os.truncate(path, 0)
        case "torn":  # its size was on disk before its second half was
            path.write_bytes(data[:middle] + bytes(len(data) - middle))
        case "missing":
            path.unlink()
        case "stale":  # the pointer of an older backup
            (path.parent / POINTER).write_text(f"{path.name}\n")
        case "incomplete":  # it has the name of a later checkpoint, and the pointer names it
            name = f"step-{int(path.name[5:13]) + 1:08d}.pt"
            (path.parent / name).write_bytes(data[:middle])
            (path.parent / POINTER).write_text(f"{name}\n")
