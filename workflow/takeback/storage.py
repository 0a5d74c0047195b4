"""A file system of its own over the checkpoints of a leg: one that can be full, fail, or lose its power.

It is mounted in a private mount namespace of the supervisor, which the ranks inherit: mounts and loop devices
vanish with the last process, however that ends. What is in it at the end becomes the leg's checkpoints.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from takeback import objectstore
from takeback.errors import EvidenceError
from takeback.faults import Surroundings

CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18  # linux/mount.h
SIZE = 32 << 20  # bytes
_libc = ctypes.CDLL(None, use_errno=True)


class Disk(Surroundings):
    """The file system over ``checkpoints`` of one leg.

    Attributes:
        folder: where it is mounted.
        image: what is mounted; None for memory.
        found: the image that is found at the end; another one if a fault says so.
    """

    def __init__(self, leg: Path, in_memory: bool) -> None:
        self.folder = leg / "checkpoints"
        self.image = None if in_memory else leg / "disk.img"
        self.found = self.image
        self.ballast: int | None = None

    def mount(self, image: Path | None) -> None:
        """Mount what is on the disk, or new memory."""
        if image is None:
            call("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "takeback", str(self.folder))
            return
        # Nothing reaches the journal by the clock: what is on disk was put there by whoever wrote it.
        call("mount", "-o", "loop,commit=300", str(image), str(self.folder))
        with suppress(OSError):
            (self.folder / "lost+found").rmdir()

    def fill(self, free: int) -> None:
        """Leave ``free`` bytes: a file without a name takes the rest."""
        self.ballast = os.open(self.folder, os.O_TMPFILE | os.O_RDWR)
        os.posix_fallocate(self.ballast, 0, self.free() - free)

    def free(self) -> int:
        """Bytes that can still be written."""
        now = os.statvfs(self.folder)
        return now.f_bavail * now.f_frsize

    def errno_of_a_write(self, size: int) -> str:
        """Name of the error that a write of ``size`` bytes meets; empty for none. Leaves nothing."""
        try:
            file = os.open(self.folder, os.O_TMPFILE | os.O_RDWR)
            try:
                while size > 0:
                    size -= os.write(file, bytes(size))
            finally:
                os.close(file)
        except OSError as error:
            return errno.errorcode[error.errno]
        return ""


@contextmanager
def disk(leg: Path, in_memory: bool = False) -> Iterator[Disk]:
    """A new file system over the checkpoints of ``leg``; at the end its content takes their place.

    Raises:
        EvidenceError: it could not be mounted, or taken away.
    """
    private_mounts()
    made = Disk(leg, in_memory)
    covered = os.open(made.folder, os.O_RDONLY | os.O_DIRECTORY)
    below = Path(f"/proc/self/fd/{covered}")
    if made.image:
        os.close(os.open(made.image, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        os.truncate(made.image, SIZE)
        call("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(made.image))
    made.mount(made.image)
    copy(below, made.folder)
    call("sync", "--file-system", str(made.folder))
    yield made
    if made.ballast is not None:
        os.close(made.ballast)
    if made.found:
        call("umount", str(made.folder))
        made.mount(made.found)
    copy(made.folder, below)
    call("umount", str(made.folder))
    os.close(covered)
    for image in {made.image, made.found} - {None}:
        image.unlink()


def private_mounts() -> None:
    """From here on this process and its children have mounts of their own (unshare(2), mount_namespaces(7))."""
    if _libc.unshare(CLONE_NEWNS) or _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise EvidenceError(f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}")


def copy(source: Path, target: Path) -> None:
    """Make the content of ``target`` that of ``source``."""
    for path in target.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.copytree(source, target, copy_function=objectstore.copy, dirs_exist_ok=True)


def call(*words: str) -> None:
    """Run a command of the system; its own words are the error."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EvidenceError(f"{words[0]} failed: {' '.join(done.stderr.split()) or done.returncode}")


def no_mounts() -> str | None:
    """Why there can't be a mount namespace here, or None."""
    if os.geteuid() != 0:
        return "a file system of its own needs root"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no mount namespace of its own: {done.stderr.strip()}" if done.returncode else None


def no_disk() -> str | None:
    """Why there can't be an ext4 on a loop device here, or None."""
    if missing := no_mounts():
        return missing
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is not installed"
    done = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    return "no loop device is free" if done.returncode else None
