"""A folder on a disk of this machine: a name is there by a rename, and durable by fsync."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from takeback.trainers import files
from takeback.trainers.files import Clock


class Store:
    """The store in a folder."""

    def __init__(self, address: str, way: str) -> None:
        self.folder, self.way = Path(address), way

    def place(self, name: str) -> str:
        return str(self.folder / name)

    def open(self, name: str) -> BinaryIO:
        return open(self.folder / name, "rb")

    @contextmanager
    def create(
        self, name: str, clock: Clock | None = None, written: Callable[[], None] | None = None
    ) -> Iterator[BinaryIO]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with files.create(self.folder / name, self.way, clock, written) as file:
            yield file

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def remove(self, name: str) -> None:
        path = self.folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def settle(self, *names: str) -> None:
        _, sync_file, sync_folder = files.WAYS[self.way]
        for name in names if sync_file else ():
            files.sync(self.folder / name)
        if sync_folder:
            files.sync(self.folder)

    def writer(self, checkpoint: str) -> Any:
        from torch.distributed.checkpoint import FileSystemWriter

        # Without its own fsync, which comes before .metadata has left Python's buffer (torch 2.13): see settle.
        return FileSystemWriter(self.folder / checkpoint, sync_files=False, overwrite=True)

    def reader(self, checkpoint: str) -> Any:
        from torch.distributed.checkpoint import FileSystemReader

        return FileSystemReader(self.folder / checkpoint)
