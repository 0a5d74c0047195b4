"""The supervisor's own records: same file format as the probe's, never the victim's."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Recorder:
    """Appends one line of JSON a record to ``supervisor.jsonl``, or a file of another name, unbuffered."""

    def __init__(self, folder: Path, name: str = "supervisor") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __call__(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "pid": os.getpid(), "mono": time.monotonic(), "wall": time.time(), **fields}
        os.write(self._file, (json.dumps(line) + "\n").encode())
