"""Stores: where the bytes of checkpoints are kept. One file each.

A name is a path in the store, such as ``step-00000008/state.pt``. What formats build on it: a name has the whole of
one write or it is not there, whatever is killed and when. :mod:`takeback.trainers.stores.manifest` makes several such
names one checkpoint.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol


class Store(Protocol):
    """What a store can do. All of it raises OSError where the store can't be reached or fails."""

    def read(self, name: str) -> bytes:
        """What was written last under ``name``.

        Raises:
            FileNotFoundError: nothing was, or it has been removed.
        """

    def write(self, name: str, data: bytes) -> None:
        """Put ``data`` under ``name``: whole and durable once this returns, and before it what was there."""

    def names(self, prefix: str = "") -> list[str]:
        """All names that begin with ``prefix``, sorted. On an object store they may lag behind :meth:`read`."""

    def remove(self, name: str) -> None:
        """Remove ``name``; where it is not there, nothing."""

    def writer(self, checkpoint: str, **options: Any) -> Any:
        """DCP's storage writer for a checkpoint of several files below ``checkpoint``."""

    def reader(self, checkpoint: str) -> Any:
        """DCP's storage reader for the same."""


class StoreError(RuntimeError):
    """What a store holds can't be used: one line with what and why."""


def get(address: str) -> Store:
    """The store at an address: a URL such as ``s3://checkpoints/run-7``, else a folder."""
    kind = "object" if "://" in address else "local"
    store: Store = importlib.import_module(f"takeback.trainers.stores.{kind}").Store(address)
    return store
