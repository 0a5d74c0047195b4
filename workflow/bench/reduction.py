"""What the fixed order costs against the backend's own sum, on this machine: time, CPU and bytes, as ratios.

    python workflow/bench/reduction.py

``all``: the sum on every rank (ddp), :func:`takeback.trainers.reduction.fixed_order` against ``dist.all_reduce``;
``slice``: each rank's slice of it (fsdp), ``fixed_order_slice`` against ``dist.reduce_scatter_single``. Each side adds
its own leaves first, 24 in all. Both sides of a ratio come from one run, call by call in turn; the slowest rank counts.
Bytes are those that the kernel has received on the sockets of all ranks (TCP_INFO, tcp(7)), a call.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable

import forked
import torch
import torch.distributed as dist
from takeback.trainers import reduction

LEAVES = 24
_TCP_INFO, _BYTES_RECEIVED = 11, 128  # linux/tcp.h: struct tcp_info, offset of tcpi_bytes_received

Call = Callable[[], object]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--worlds", type=int, nargs="+", default=[2, 3, 4, 6, 8])
    options.add_argument("--floats", type=int, nargs="+", default=[reference_model(), 1_000_000], help="size of a leaf")
    options.add_argument("--repeat", type=int, default=15)
    args = options.parse_args()
    print("what\tworld\tfloats\twall, ratio\tCPU, ratio\tbytes, ratio\tbytes, native\twall of native, ms")
    for floats in args.floats:
        for world in args.worlds:
            forked.run(world, measure, floats, args.repeat)


def reference_model() -> int:
    """Floats of one leaf of the reference trainer with its default settings."""
    from takeback.trainers.model import Transformer
    from takeback.trainers.settings import Settings

    shape = {name: getattr(Settings(""), name) for name in ("width", "layers", "heads", "context", "dropout")}
    return sum(parameter.numel() for parameter in Transformer(**shape).parameters()) + 1


def measure(floats: int, repeat: int) -> None:
    """Print one line for each kind of sum; a collective of all ranks."""
    world, group = dist.get_world_size(), dist.group.WORLD
    torch.manual_seed(dist.get_rank())
    width = -(-floats // world)
    leaves = [torch.randn(width * world) for _ in range(LEAVES // world)]
    sliced = [leaf.view(world, width) for leaf in leaves]

    def native_slice() -> None:
        total = leaves[0].clone()
        for leaf in leaves[1:]:
            total = total + leaf
        dist.reduce_scatter_single(total.new_empty(width), total, group=group)

    kinds: dict[str, tuple[Call, Call]] = {
        "all": (lambda: reduction.fixed_order(leaves, group), lambda: reduction.allreduce(leaves, group)),
        "slice": (lambda: reduction.fixed_order_slice(sliced, group), native_slice),
    }
    for kind, both in kinds.items():
        samples = [[timed(call) for call in both] for _ in range(repeat + 1)][1:]  # the first one connects
        took = torch.tensor(samples)  # repetitions x (fixed order, native) x (wall, CPU)
        slowest, total = took[..., 0].clone(), took[..., 1].clone()
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        dist.all_reduce(total)
        sent = torch.tensor([received(call) for call in both], dtype=torch.float64)
        dist.all_reduce(sent)
        if dist.get_rank() == 0:
            wall, cpu = ((part[:, 0] / part[:, 1]).tolist() for part in (slowest, total))
            ratios = [statistics.median(wall), statistics.median(cpu), float(sent[0] / sent[1])]
            rest = [f"{int(sent[1] / world):,}", f"{1000 * slowest[:, 1].median():.2f}"]
            print(kind, world, floats, *(f"{ratio:.2f}" for ratio in ratios), *rest, sep="\t", flush=True)


def timed(call: Call) -> tuple[float, float]:
    """Wall and CPU seconds of one call, begun together."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def received(call: Call, calls: int = 4) -> float:
    """Bytes that came to this rank by a call."""
    before = _received()
    for _ in range(calls):
        call()
    dist.barrier()
    return (_received() - before) / calls


def _received() -> int:
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    info = copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, _BYTES_RECEIVED)[0]
        except OSError:  # closed by now, or no TCP socket
            pass
    return total


if __name__ == "__main__":
    main()
