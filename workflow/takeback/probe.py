"""What a training program tells Takeback: the only module that a trainer imports.

Three calls in a loop of your own are enough::

    from takeback import probe

    probe.restored(step)                      # after the load line, on every rank; step 0 = from scratch
    probe.step(step, loss, samples=ids)       # once a global step, after the optimizer
    probe.saved(step)                         # once a checkpoint is complete, on every rank

Outside the suite (``TAKEBACK_RECORDS`` unset) every call returns at once. Inside it,
each call is one line of JSON, written by one unbuffered ``write`` to a file of this
process's own, so that nothing which was told is lost with the process, whatever ends it.

This module imports nothing beyond the standard library, and torch never: a tensor is
known by the methods that it has.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

_encode = json.JSONEncoder(default=str).encode  # json.dumps with a default makes an encoder each time
_HEX = 16  # hex digits kept of a SHA-256: 64 bits tell tensors of one run apart

_file: int | None = None
_armed: list[dict[str, Any]] = []
_rank = 0


def connect() -> None:
    """Open this process's record file, or stay a no-op where the suite did not ask for one.

    Called on import. The environment: ``TAKEBACK_RECORDS`` (folder), ``TAKEBACK_ARMED`` (JSON list of faults that wait
    for a rank of some attempt), ``RANK``, and ``TORCHELASTIC_RESTART_COUNT``, which is the attempt: an agent counts the
    failures that it has seen, so that two groups may have the same. ``TAKEBACK_ONE_LIFE``: there is no other group, and
    the file is this rank's alone; else the process has one of its own.
    """
    global _file, _armed, _rank
    folder = os.environ.get("TAKEBACK_RECORDS")
    if not folder:
        _file, _armed = None, []
        return
    _rank = int(os.environ.get("RANK", "0"))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    armed = json.loads(os.environ.get("TAKEBACK_ARMED", "[]"))
    _armed = [fault for fault in armed if fault["attempt"] == attempt and _is_victim(fault["ranks"])]
    own = "" if "TAKEBACK_ONE_LIFE" in os.environ else f"-pid{os.getpid()}"
    path = os.path.join(folder, f"attempt{attempt}-rank{_rank}{own}.jsonl")
    _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if sys.excepthook is not _tell_error:
        _tell_error.then = sys.excepthook
        sys.excepthook = _tell_error
    # A worker process of a DataLoader inherits nothing of this: only ranks tell.
    os.register_at_fork(after_in_child=_disconnect)
    point("start")


def _is_victim(ranks: str | list[int]) -> bool:
    if ranks == "last":
        return _rank == int(os.environ.get("WORLD_SIZE", "1")) - 1
    return ranks == "all" or _rank in ranks


def _tell_error(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    record("error", type=kind.__name__, text=str(error))
    _tell_error.then(kind, error, trace)


def _disconnect() -> None:
    global _file, _armed
    _file, _armed = None, []


def active() -> bool:
    """True inside the suite: ask before you compute something only to tell it."""
    return _file is not None


def record(kind: str, **fields: Any) -> None:
    """Write one event; ``kind`` and the fields land in ``events.parquet``."""
    if _file is None:
        return
    line = {"kind": kind, "pid": os.getpid(), "mono": time.monotonic(), "wall": time.time(), **fields}
    data = (_encode(line) + "\n").encode()
    if os.write(_file, data) != len(data):
        raise OSError(errno.ENOSPC, "a record was written in part: the disk is full")


def describe(**facts: Any) -> None:
    """Facts about this run for its provenance: ``dataset``, ``dtype``, ``shapes``, ``seed``, …"""
    record("described", facts=facts)


def group(world: int, backend: str) -> None:
    """The process group has formed; ``world`` is the number of ranks that a collective counted."""
    record("group_formed", world=world, backend=backend)


def restored(step: int, *, epoch: int | None = None, state: Mapping[str, Any] | None = None) -> None:
    """The state is in place and the loop is about to start.

    Args:
        step: completed global steps; 0 says that this run starts from scratch.
        epoch: the epoch of the next step.
        state: nested mapping of tensors and numbers, digested by dotted name as ``loaded``.
    """
    if _file is None:
        return
    step = int(step)
    record("restored", step=step, epoch=None if epoch is None else int(epoch), **_kernels())
    if state is not None:
        digest("loaded", step, state)
    point("restored", step)


def _kernels() -> dict[str, Any]:
    """Build of torch's CPU kernels and number of threads that this process really has."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {"kernels": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}


def step(
    step: int,
    loss: Any,
    *,
    epoch: int | None = None,
    samples: Iterable[int] = (),
    micro_batches: int = 1,
    lr: float | None = None,
    grad_norm: Any = None,
    state: Mapping[str, Any] | None = None,
) -> None:
    """Global step ``step`` (counted from 1) is done.

    Args:
        loss: the global loss. Give the tensor: its bits are recorded in its own dtype.
            A Python float is recorded as float64.
        epoch: the epoch that the step belongs to, counted from 0; without it nothing is said of epochs.
        samples: ids of the samples that THIS rank consumed in this step (not prefetched ones), as integers.
        micro_batches: how many micro-batches this rank ran.
        lr: learning rate of the first parameter group in this step.
        grad_norm: norm before clipping, a tensor or a float.
        state: as for :func:`restored`, digested as ``step``.
    """
    if _file is None:
        return
    step = int(step)
    bits, dtype = float_bits(loss)
    norm_bits, _ = float_bits(grad_norm) if grad_norm is not None else (None, None)
    record(
        "step",
        step=step,
        epoch=-1 if epoch is None else int(epoch),
        micro_batches=int(micro_batches),
        loss_bits=bits,
        loss_dtype=dtype,
        lr=None if lr is None else float(lr),
        grad_norm=None if grad_norm is None else float(grad_norm),
        grad_norm_bits=norm_bits,
        samples=[int(i) for i in samples],
    )
    if state is not None:
        digest("step", step, state)
    point("step", step)


def saved(step: int, *, state: Mapping[str, Any] | None = None) -> None:
    """The checkpoint of ``step`` completed steps is complete: a later start may find it."""
    if _file is None:
        return
    step = int(step)
    record("saved", step=step)
    if state is not None:
        digest("saved", step, state)
    point("saved", step)


def finished(step: int, *, state: Mapping[str, Any] | None = None) -> None:
    """The loop has ended after ``step`` completed steps."""
    if _file is None:
        return
    step = int(step)
    record("finished", step=step)
    if state is not None:
        digest("end", step, state)


def refused(reason: str) -> None:
    """This rank is about to stop with a clear error, on purpose, instead of going on wrongly."""
    record("refused", reason=reason)


def not_run(reason: str) -> None:
    """This rank can't run here, and has done nothing: its cells are then ``not-run``, with this reason."""
    record("not_run", reason=reason)


def digest(moment: str, step: int, state: Mapping[str, Any]) -> None:
    """Record a digest of each entry of a nested ``state`` by dotted name, in its own order.

    ``moment`` is one of ``step``, ``saved``, ``loaded``, ``end``.
    """
    if _file is None:
        return
    entries = [[name, *_digest(value)] for name, value in flatten(state)]
    record("digest", moment=moment, step=step, entries=entries)


def point(name: str, step: int | None = None) -> None:
    """A named place where a fault may strike. Costs a comparison unless one waits here.

    If one does, the process says so in its records and stops itself (SIGSTOP): it is then
    held at exactly this instruction until the supervisor has struck or lets it go on.
    """
    if not _armed:
        return
    for fault in list(_armed):
        if fault["point"] == name and fault["step"] in (None, step):
            _armed.remove(fault)
            record("held", point=name, step=step, fault=fault["id"])
            # To this thread: of a process as a whole another thread is told, and this one goes on until it has heard.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            if "acts" in fault:  # what a process can only do to itself
                importlib.import_module(f"takeback.faults.{fault['acts']}").act(**fault["with"])


def flatten(state: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted name and leaf of each entry of nested mappings and lists, in their own order."""
    if isinstance(state, Mapping):
        items: Iterable[tuple[Any, Any]] = state.items()
    elif isinstance(state, list | tuple):
        items = enumerate(state)
    else:
        yield prefix, state
        return
    for key, value in items:
        yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))


_FORMATS = {"float64": "dq", "float32": "fi"}


def float_bits(value: Any) -> tuple[int, str]:
    """The bits of a float as a signed integer, and its dtype (``float32``, ``float64``, …).

    A zero-dimensional tensor keeps its own dtype; anything else is taken as a Python
    float, which is a float64. bfloat16 and float16 are widened to float32, exactly.
    """
    dtype = str(getattr(value, "dtype", "float64")).removeprefix("torch.")
    if dtype in ("bfloat16", "float16"):
        dtype = "float32"
    if dtype not in _FORMATS:
        dtype = "float64"
    real, integer = _FORMATS[dtype]
    return struct.unpack(integer, struct.pack(real, float(value)))[0], dtype


def _digest(value: Any) -> tuple[str, str, str]:
    """(dtype, shape, digest) of one leaf."""
    if hasattr(value, "detach"):
        tensor = value.detach()
        if hasattr(tensor, "full_tensor"):  # DTensor: the whole, not this rank's shard
            tensor = tensor.full_tensor()
        shape = "x".join(map(str, tensor.shape))
        raw = tensor.cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
        return str(tensor.dtype).removeprefix("torch."), shape, _sha(memoryview(raw))
    if hasattr(value, "tobytes"):  # numpy arrays and scalars
        shape = "x".join(map(str, value.shape))
        return str(value.dtype), shape, _sha(value.tobytes())
    if isinstance(value, float):
        return "float64", "", _sha(struct.pack("d", value))
    return type(value).__name__, "", _sha(repr(value).encode())


def _sha(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:_HEX]


connect()
