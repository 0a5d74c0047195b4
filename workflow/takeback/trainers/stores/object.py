"""A bucket of an object store: S3, or whatever else fsspec has a client for.

There is no rename and no fsync, and none is needed: a PUT or a completed multipart upload is atomic and durable once it
is answered, and can be read at once; an upload that is killed leaves no object
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/Welcome.html#ConsistencyModel). Its parts stay, and are paid for,
until a lifecycle rule of the bucket removes them. A listing may lag behind: the newest checkpoint is found by reading
``latest``, and a resume that believed a listing would go back.

Address and keys of the server are the client's own business; for S3 they are in the standard variables
``AWS_ENDPOINT_URL_S3``, ``AWS_ACCESS_KEY_ID``, ….
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from fsspec.core import url_to_fs

from takeback.trainers.files import Clock

#: fsspec's clients keep listings, and never ask again: what another process has saved would not be there.
OPTIONS = {"use_listings_cache": False}


class Store:
    """The store below a URL, such as ``s3://bucket/run-7``; the bucket is there. Objects have one way to be written."""

    def __init__(self, address: str, way: str) -> None:
        self.address = address.rstrip("/")
        self.fs, self.root = url_to_fs(self.address, **OPTIONS)

    def place(self, name: str) -> str:
        return f"{self.address}/{name}"

    def open(self, name: str) -> BinaryIO:
        with errors(name):
            return io.BytesIO(self.fs.cat_file(f"{self.root}/{name}"))

    @contextmanager
    def create(
        self, name: str, clock: Clock | None = None, written: Callable[[], None] | None = None
    ) -> Iterator[BinaryIO]:
        clock = clock or Clock()
        with errors(name):
            file = self.fs.open(f"{self.root}/{name}", "wb", autocommit=False)
        try:
            yield _Upload(file, name)
            with errors(name):
                file.close()  # all parts are there, and no object
            clock("write")
            if written:
                written()
                clock.skip()
            with errors(name):
                file.commit()
            clock("commit")
        except BaseException:
            with suppress(OSError), errors(name):  # what failed first is what to tell
                file.discard()
            raise
        finally:
            file.closed = True  # fsspec's file would go on by itself when it is collected

    def names(self) -> set[str]:
        with errors(self.address):
            found = self.fs.find(self.root)
        return {path.removeprefix(f"{self.root}/").split("/")[0] for path in found}

    def has(self, name: str) -> bool:
        with errors(name):
            try:
                return self.fs.info(f"{self.root}/{name}")["type"] == "file"
            except FileNotFoundError:  # fsspec's isfile says so of any error, such as that of a busy server
                return False

    def remove(self, name: str) -> None:
        with errors(name):
            for path in self.fs.find(f"{self.root}/{name}"):
                self.fs.rm_file(path)

    def settle(self, *names: str) -> None:
        pass

    def writer(self, checkpoint: str) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        return FsspecWriter(f"{self.address}/{checkpoint}", sync_files=False, overwrite=True, **OPTIONS)

    def reader(self, checkpoint: str) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(f"{self.address}/{checkpoint}", **OPTIONS)


class _Upload:
    """A file to write whose errors are OSError."""

    def __init__(self, file: Any, name: str) -> None:
        self.file, self.name = file, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes | memoryview) -> int:
        with errors(self.name):
            return self.file.write(data)


@contextmanager
def errors(name: str) -> Iterator[None]:
    """Errors of a client's own kind, such as botocore's of a server that can't be reached, as OSError."""
    try:
        yield
    except FileNotFoundError as error:
        said = error.strerror or str(error)
        said = "No such object" if said.endswith(name) else said
        raise FileNotFoundError(errno.ENOENT, said, name) from None
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", name) from error
