"""A file of the checkpoints is not what was written: bit rot, a torn write, a lost file, a restored backup.

Of the reference trainer's files, once all ranks have ended (point ``end``). Of a checkpoint that is a directory one
file is damaged: the last rank's shard, DCP's metadata, or the manifest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from takeback.faults import Injection

PARAMETERS = {"how": "flip_bit", "file": "newest", "part": "shard"}
OF_FILES = True
CHOICES = {
    "how": ["flip_bit", "truncate", "empty", "torn", "missing", "older", "stale", "incomplete"],
    "file": ["newest", "previous", "oldest", "pointer"],
    "part": ["shard", "metadata", "manifest"],
}
ENDS_BY = []
PROVES = {"changed": True}
POINTER = "latest"
PARTS = {"shard": "*.distcp", "metadata": ".metadata", "manifest": "manifest.json"}


def strike(injection: Injection) -> None:
    """Do it, and compare the digests of all files before and after."""
    folder, given = injection.checkpoints, injection.parameters
    before = digests(folder)
    saved = sorted(path.name for path in folder.glob("step-*"))
    at = {"newest": -1, "previous": -2, "oldest": 0}
    name = POINTER if given["file"] == "pointer" else (saved[at[given["file"]] :] or [""])[0]
    if name and (folder / name).exists():
        damage(folder / name, given["how"], PARTS[given["part"]])
    after = digests(folder)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    injection.seen["changed"] = bool(changed)
    injection.seen["files"] = changed
    injection.seen["destroyed"] = sorted({int(name[5:13]) for name in changed if name.split("/")[0] in saved})


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, by its path in ``folder``."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def damage(saved: Path, how: str, part: str) -> None:
    """One way of losing what was written: of the file, or of the last one that ``part`` matches in the directory."""
    path = max(saved.glob(part)) if saved.is_dir() else saved
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
        case "older":  # what is there under the same name in the checkpoint before
            for before in sorted(saved.parent.glob("step-*"))[:-1]:
                if before.name < saved.name:
                    shutil.copyfile(before / path.name if saved.is_dir() else before, path)
        case "stale":  # the pointer of an older backup
            (saved.parent / POINTER).write_text(f"{saved.name}\n")
        case "incomplete":  # it has the name of a later checkpoint, and the pointer names it
            later = saved.with_name(f"step-{int(saved.name[5:13]) + 1:08d}{saved.suffix}")
            if saved.is_dir():
                shutil.copytree(saved, later, ignore=shutil.ignore_patterns(PARTS["manifest"]))
            else:
                later.write_bytes(data[:middle])
            (saved.parent / POINTER).write_text(f"{later.name}\n")
