"""Sum the gradients of all virtual shards: the same bits at every world size, or the backend's own way.

Floating-point addition does not associate, so the order of the sum is part of the result.
``fixed-order`` adds V leaves (one a virtual shard) in ONE tree whatever the number of ranks:
with V = odd * 2**k, each of 2**k groups adds its ``odd`` leaves left to right, and the groups
are added pairwise. A rank holds consecutive shards, hence whole subtrees where the world is a
power of two that divides 2**k: it sums them, and recursive doubling does the upper levels
(Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
2005). At other world sizes the leaves are gathered and each rank adds the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Reduce = Callable[[Sequence[Tensor], "dist.ProcessGroup", Callable[[], None]], Tensor]


def _nothing() -> None:
    pass


def flatten(gradients: Sequence[Tensor], loss: Tensor) -> Tensor:
    """One leaf: all gradients in a row, and the loss as the last element."""
    return torch.cat([*(gradient.reshape(-1) for gradient in gradients), loss.detach().reshape(1)])


def odd_part(count: int) -> int:
    """The largest odd divisor of ``count``."""
    return count // (count & -count)


def tree(leaves: Sequence[Tensor], odd: int) -> Tensor:
    """Sum ``odd * 2**k`` leaves: groups of ``odd`` left to right, then pairwise."""
    sums = [_left_to_right(leaves[first : first + odd]) for first in range(0, len(leaves), odd)]
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def fixed_order(leaves: Sequence[Tensor], group: dist.ProcessGroup, inside: Callable[[], None] = _nothing) -> Tensor:
    """Sum this rank's ``leaves`` (V / world of them) and all others', in the order of the one tree.

    ``inside`` is called once while the first exchange is under way.
    """
    world = dist.get_world_size(group)
    shards = len(leaves) * world
    odd = odd_part(shards)
    if world & (world - 1) == 0 and (shards // odd) % world == 0:
        return _recursive_doubling(tree(leaves, odd), group, inside)
    mine = torch.stack(list(leaves))
    gathered = [torch.empty_like(mine) for _ in range(world)]
    request = dist.all_gather(gathered, mine, group=group, async_op=True)
    inside()
    request.wait()
    return tree([leaf for part in gathered for leaf in part], odd)


def allreduce(leaves: Sequence[Tensor], group: dist.ProcessGroup, inside: Callable[[], None] = _nothing) -> Tensor:
    """Sum this rank's leaves left to right, then by the backend's all-reduce, in its own order."""
    total = _left_to_right(leaves).clone()
    request = dist.all_reduce(total, group=group, async_op=True)
    inside()
    request.wait()
    return total


def _left_to_right(leaves: Sequence[Tensor]) -> Tensor:
    total = leaves[0]
    for leaf in leaves[1:]:
        total = total + leaf
    return total


def _recursive_doubling(total: Tensor, group: dist.ProcessGroup, inside: Callable[[], None]) -> Tensor:
    # Addition commutes bit for bit: lower + upper on one rank is upper + lower on its partner.
    rank, distance = dist.get_rank(group), 1
    if dist.get_world_size(group) == 1:
        inside()
    while distance < dist.get_world_size(group):
        partner = dist.get_global_rank(group, rank ^ distance)
        other = torch.empty_like(total)
        exchange = [
            dist.P2POp(dist.isend, total, partner, group),
            dist.P2POp(dist.irecv, other, partner, group),
        ]
        requests = dist.batch_isend_irecv(exchange)
        if distance == 1:
            inside()
        for request in requests:
            request.wait()
        total = total + other
        distance *= 2
    return total


REDUCTIONS: dict[str, Reduce] = {"fixed-order": fixed_order, "allreduce": allreduce}
