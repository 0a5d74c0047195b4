"""Stores: where the bytes of checkpoints are kept. One file each.

A name is a path in the store, such as ``latest`` or ``step-00000008.dcp/manifest.json``. What formats build on: a name
has the whole of one write or it is not there, whatever is killed and when.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Protocol

from takeback.trainers.files import Clock


class Store(Protocol):
    """What a store can do. All of it raises OSError where the store can't be reached or fails."""

    def place(self, name: str) -> str:
        """Path or URL of a name, for people."""

    def open(self, name: str) -> BinaryIO:
        """What was written last under ``name``, to read and to seek in.

        Raises:
            FileNotFoundError: nothing was, or it has been removed.
        """

    def create(
        self, name: str, clock: Clock | None = None, written: Callable[[], None] | None = None
    ) -> AbstractContextManager[BinaryIO]:
        """A file to write: once the context has ended, all of it is under ``name`` for good, and before, what was
        there; the same where the context ends with an error.

        Args:
            clock: is told the seconds that each part took.
            written: called when all is written, before it has its name.
        """

    def names(self) -> set[str]:
        """First parts of all names. On an object store they may lag behind :meth:`open` and :meth:`has`."""

    def has(self, name: str) -> bool:
        """Whether there is something to :meth:`open`."""

    def remove(self, name: str) -> None:
        """Remove ``name`` and all below it; where it is not there, nothing."""

    def settle(self, *names: str) -> None:
        """Make what DCP's :meth:`writer` has written durable, as :meth:`create` does by itself."""

    def writer(self, checkpoint: str) -> Any:
        """DCP's storage writer for a checkpoint of several files below ``checkpoint``."""

    def reader(self, checkpoint: str) -> Any:
        """DCP's storage reader for the same."""


def get(address: str, way: str = "whole") -> Store:
    """The store at an address: a URL such as ``s3://checkpoints/run-7``, else a folder, made when something is written.

    Args:
        way: how a file comes to the disk of a folder, one of :data:`takeback.trainers.files.WAYS`.
    """
    kind = "object" if is_url(address) else "local"
    store: Store = importlib.import_module(f"takeback.trainers.stores.{kind}").Store(address, way)
    return store


def is_url(address: str) -> bool:
    """Whether checkpoints at this address are objects."""
    return "://" in address


def why(error: OSError) -> str:
    """The reason of an error, without the name of what it befell: clients of object stores have a text alone."""
    return error.strerror or str(error) or type(error).__name__
