"""A folder on a disk of this machine: a name is there by a rename, and durable by fsync."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from takeback.trainers import files


class Store:
    """The store in a folder, which is made if it is not there.

    Args:
        address: the folder.
        way: how a file comes to the disk, one of :data:`takeback.trainers.files.WAYS`.
    """

    def __init__(self, address: str | Path, way: str = "whole") -> None:
        self.folder, self.way = Path(address), way
        self._folder(self.folder)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        self._folder(path.parent)
        files.write(path, data, self.way)

    def names(self, prefix: str = "") -> list[str]:
        found = (str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        return sorted(name for name in found if name.startswith(prefix) and not name.endswith(".tmp"))

    def remove(self, name: str) -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)
        if path.parent != self.folder and path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def writer(self, checkpoint: str, **options: Any) -> Any:
        from torch.distributed.checkpoint import FileSystemWriter

        self._folder(self.folder / checkpoint)
        return FileSystemWriter(self.folder / checkpoint, **options)

    def reader(self, checkpoint: str) -> Any:
        from torch.distributed.checkpoint import FileSystemReader

        return FileSystemReader(self.folder / checkpoint)

    def _folder(self, path: Path) -> None:
        """Make a folder whose own name is durable too."""
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            if self.way == "whole":
                files.sync(path.parent)
