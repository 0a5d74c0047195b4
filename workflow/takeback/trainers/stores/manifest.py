"""What makes several objects one checkpoint where nothing can be renamed: a manifest, put last.

A save puts the objects below ``step-XXXXXXXX/``, then ``step-XXXXXXXX/manifest.json`` with size and SHA-256 of each
(:func:`seal`), and then writes the checkpoint's name to ``latest``. A checkpoint without manifest, or whose objects are
not those of it, is not there. Its removal begins with the manifest (:func:`retire`), so that a kill at any instruction
leaves a whole checkpoint or none.

The newest checkpoint is found by reading ``latest``, and by a listing only where that is damaged: a listing may lag
behind, and a resume that believed it would go back.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from takeback.trainers.stores import Store, StoreError

MANIFEST = "manifest.json"
POINTER = "latest"
NAME = re.compile(r"step-\d{8,}")


def digest(data: bytes) -> dict[str, Any]:
    """Size in bytes and SHA-256 of one object, as they stand in the manifest."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def seal(store: Store, checkpoint: str, objects: dict[str, dict[str, Any]]) -> None:
    """Complete a checkpoint, all of whose objects have been put; :data:`POINTER` is the caller's to write, after it.

    Args:
        objects: :func:`digest` of each, by its name below ``checkpoint``, told by those who wrote them: a listing may
            not have them yet.
    """
    store.write(f"{checkpoint}/{MANIFEST}", json.dumps(objects, sort_keys=True, indent=1).encode())


def check(store: Store, checkpoint: str) -> None:
    """Whether a checkpoint is complete, and is what was written.

    Raises:
        StoreError: it is not: it has no manifest, or an object is missing or another one.
    """
    for name, expected in manifest(store, checkpoint).items():
        read(store, checkpoint, name, expected)


def read(store: Store, checkpoint: str, name: str, expected: dict[str, Any] | None = None) -> bytes:
    """One object of a complete checkpoint, as it was written.

    Args:
        expected: its entry in the manifest, which is read if it is not given.

    Raises:
        StoreError: the checkpoint is not complete, or the object is missing or another one.
    """
    if expected is None:
        expected = manifest(store, checkpoint).get(name)
    try:
        data = store.read(f"{checkpoint}/{name}")
    except FileNotFoundError:
        raise StoreError(f"{checkpoint}/{name}: is missing") from None
    if digest(data) != expected:
        raise StoreError(f"{checkpoint}/{name}: is damaged: its content is not that of the manifest")
    return data


def manifest(store: Store, checkpoint: str) -> dict[str, dict[str, Any]]:
    """:func:`digest` of each object of a checkpoint by name.

    Raises:
        StoreError: there is none, or it can't be read.
    """
    try:
        found = json.loads(store.read(f"{checkpoint}/{MANIFEST}"))
    except FileNotFoundError:
        raise StoreError(f"{checkpoint}: is not complete: it has no {MANIFEST}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StoreError(f"{checkpoint}/{MANIFEST}: is damaged: it is no JSON object")
    return found


def newest(store: Store) -> str | None:
    """The checkpoint that ``latest`` names; None where nothing has been saved yet.

    Raises:
        StoreError: ``latest`` can't be what the last save wrote, or objects that are listed are not there.
    """
    try:
        name = store.read(POINTER).decode(errors="replace").strip()
    except FileNotFoundError:
        # The first save may have been killed between its manifest and the pointer; of two, the first wrote the pointer.
        if len(there := sealed(store)) > 1:
            raise StoreError(f"{POINTER}: is missing, and {len(there)} checkpoints are there") from None
        for name in there:
            manifest(store, name)  # an object that is listed and can't be read is damage, not a beginning
        return None
    if not NAME.fullmatch(name):
        raise StoreError(f"{POINTER}: is damaged: {name!r} is no name of a checkpoint")
    return name


def sealed(store: Store) -> list[str]:
    """Checkpoints with a manifest, oldest first, as far as the listing goes: to fall back to, and to retire."""
    return sorted(name.split("/")[0] for name in store.names("step-") if name.endswith(f"/{MANIFEST}"))


def begun(store: Store) -> list[str]:
    """Checkpoints with any object, complete or not, oldest first: with :func:`sealed`, what killed saves have left."""
    return sorted({name.split("/")[0] for name in store.names("step-")})


def retire(store: Store, checkpoint: str) -> None:
    """Remove a checkpoint, its manifest first."""
    store.remove(f"{checkpoint}/{MANIFEST}")
    for name in store.names(f"{checkpoint}/"):
        store.remove(name)
