"""The checksum of a file while it is written or read: XXH3 of 128 bits, by which damage is found, and no forgery.

It is as fast as memory. SHA-256 takes longer than ``torch.save`` itself: a save took 1.4 times as long with it, and a
load 1.9 times.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO

from torch.serialization import get_crc32_options, set_crc32_options
from xxhash import xxh3_128

DIGITS = 32
_PIECE = 1 << 20  # bytes


class Hashed:
    """A file to write to, once and from its start, with the size and checksum of what was written.

    Args:
        file: what is written to.
        half: called once, when ``at`` bytes have gone to the file and more are to come, if given.
    """

    def __init__(self, file: BinaryIO, at: int = 0, half: Callable[[], None] | None = None) -> None:
        self.file, self.at, self.half = file, at, half
        self.hash, self.size = xxh3_128(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes | memoryview) -> int:
        data = memoryview(data).cast("B")
        if self.half and self.size + len(data) > self.at:
            half, first, self.half = self.half, self.at - self.size, None
            self._write(data[:first])
            self.file.flush()
            half()
            self._write(data[first:])
        else:
            self._write(data)
        return len(data)

    def _write(self, data: memoryview) -> None:
        self.hash.update(data)
        self.file.write(data)
        self.size += len(data)

    def hexdigest(self) -> str:
        return self.hash.hexdigest()


@contextmanager
def hashing(file: BinaryIO) -> Iterator[Callable[[], str]]:
    """Hash a file in another thread while the caller reads it for himself.

    Yields:
        What waits for the checksum, in hexadecimal digits.
    """
    with ThreadPoolExecutor(1) as other:
        yield other.submit(digest, file).result


def digest(file: BinaryIO, size: int | None = None) -> str:
    """The checksum of the first ``size`` bytes of a file, or of all, by calls that leave its position alone."""
    if isinstance(file, io.BytesIO):
        return xxh3_128(file.getbuffer()[:size]).hexdigest()
    hash = xxh3_128()
    offset, left = 0, os.fstat(file.fileno()).st_size if size is None else size
    while piece := os.pread(file.fileno(), min(left, _PIECE), offset):
        hash.update(piece)
        offset, left = offset + len(piece), left - len(piece)
    return hash.hexdigest()


@contextmanager
def writing() -> Iterator[None]:
    """``torch.save`` without the checksums of a zip file, which take as long as to write it: we have a better one.

    Raises:
        OSError: of the write, which torch's zip file hides: "unexpected pos 704 vs 598" (torch 2.13).
    """
    usual = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    finally:
        set_crc32_options(usual)
