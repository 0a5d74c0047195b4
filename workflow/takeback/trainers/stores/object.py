"""A bucket of an object store: S3, or whatever else fsspec has a client for.

There is no rename and no fsync, and none is needed: a PUT or a completed multipart upload is atomic and durable once it
is answered, and can be read at once; an upload that is killed leaves no object
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/Welcome.html#ConsistencyModel). Its parts stay, and are paid for,
until a lifecycle rule of the bucket removes them.

Address and keys of the server are the client's own business; for S3 they are in the standard variables
``AWS_ENDPOINT_URL_S3``, ``AWS_ACCESS_KEY_ID``, ….
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsspec.core import url_to_fs

#: fsspec's clients keep listings, and never ask again: what another process has saved would not be there.
OPTIONS = {"use_listings_cache": False}


class Store:
    """The store below a URL, such as ``s3://bucket/run-7``; the bucket is there."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.fs, self.root = url_to_fs(self.address, **OPTIONS)

    def read(self, name: str) -> bytes:
        with errors(name):
            return self.fs.cat_file(f"{self.root}/{name}")

    def write(self, name: str, data: bytes) -> None:
        with errors(name):
            self.fs.pipe_file(f"{self.root}/{name}", data)

    def names(self, prefix: str = "") -> list[str]:
        folder, _, start = prefix.rpartition("/")
        with errors(prefix):
            found = self.fs.find(f"{self.root}/{folder}".rstrip("/"), prefix=start)
        return sorted(path.removeprefix(f"{self.root}/") for path in found)

    def remove(self, name: str) -> None:
        with errors(name):
            self.fs.rm_file(f"{self.root}/{name}")

    def writer(self, checkpoint: str, **options: Any) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        return FsspecWriter(f"{self.address}/{checkpoint}", **options, **OPTIONS)

    def reader(self, checkpoint: str) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(f"{self.address}/{checkpoint}", **OPTIONS)


@contextmanager
def errors(name: str) -> Iterator[None]:
    """Errors of a client's own kind, such as botocore's of a server that can't be reached, as OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", name) from error
