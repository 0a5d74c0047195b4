"""Sum the gradients of all virtual shards: the same bits at every world size, or the backend's own way.

Floating-point addition does not associate, so the order of the sum is part of the result.
``fixed-order`` adds V leaves (one a virtual shard) in ONE tree whatever the number of ranks:
with V = odd * 2**k, each of 2**k groups adds its ``odd`` leaves left to right, and the groups
are added pairwise. A rank holds consecutive leaves. Where the world is a power of two that divides
2**k, these are one whole subtree: it sums them, and recursive doubling does the upper levels
(Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
2005). Elsewhere a rank sums the few whole subtrees that it holds, each rank adds one slice of what
all have (:func:`fixed_order_slice`), and the slices are gathered. Sharded parameters want their slice only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Inside = Callable[[], None]
Reduce = Callable[[Sequence[Tensor], "dist.ProcessGroup", Inside], Tensor]
Node = tuple[int, int]  # the leaves from the first number up to the second


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
    return _add((0, len(leaves)), odd, {(number, number + 1): leaf for number, leaf in enumerate(leaves)})


def _add(node: Node, odd: int, known: Mapping[Node, Tensor]) -> Tensor:
    """The sum of the leaves under ``node``, from the sums that are known."""
    if node in known:
        return known[node]
    left, right = _children(node, odd)
    return _add(left, odd, known) + _add(right, odd, known)


def _children(node: Node, odd: int) -> tuple[Node, Node]:
    first, last = node
    middle = (first + last) // 2 if last - first > odd else last - 1
    return (first, middle), (middle, last)


def subtrees(node: Node, odd: int, held: Node) -> list[Node]:
    """The fewest nodes under ``node`` whose leaves are all among those ``held``, in order."""
    if held[0] <= node[0] and node[1] <= held[1]:
        return [node]
    if held[1] <= node[0] or node[1] <= held[0]:
        return []
    return [found for child in _children(node, odd) for found in subtrees(child, odd, held)]


def fixed_order(leaves: Sequence[Tensor], group: dist.ProcessGroup, inside: Inside = _nothing) -> Tensor:
    """Sum this rank's ``leaves`` (V / world of them) and all others', in the order of the one tree.

    ``inside`` is called once while the first exchange is under way.
    """
    world = dist.get_world_size(group)
    shards = len(leaves) * world
    odd = odd_part(shards)
    if world & (world - 1) == 0 and (shards // odd) % world == 0:
        return _recursive_doubling(tree(leaves, odd), group, inside)
    width = -(-leaves[0].numel() // world)
    mine = _slice(leaves, world, width, group, inside)
    whole = mine.new_empty(width * world)
    dist.all_gather_single(whole, mine, group=group)
    return whole[: leaves[0].numel()]


def fixed_order_slice(leaves: Sequence[Tensor], group: dist.ProcessGroup, inside: Inside = _nothing) -> Tensor:
    """One slice of the sum that :func:`fixed_order` gives: slice ``rank % S``.

    Args:
        leaves: this rank's V / world leaves, each of S slices: S x size of a slice.
    """
    slices, width = leaves[0].shape
    return _slice([leaf.view(-1) for leaf in leaves], slices, width, group, inside)


def _slice(leaves: Sequence[Tensor], slices: int, width: int, group: dist.ProcessGroup, inside: Inside) -> Tensor:
    """Slice ``rank % slices`` of the sum; the last one is filled up with zeros to its ``width``."""
    rank, world, each = dist.get_rank(group), dist.get_world_size(group), len(leaves)
    root, odd = (0, each * world), odd_part(each * world)
    held = [subtrees(root, odd, (other * each, (other + 1) * each)) for other in range(world)]
    mine = {(number, number + 1): leaf for number, leaf in enumerate(leaves, start=rank * each)}
    if world == 1:
        inside()
        return _add(root, odd, mine)[:width]
    # Ranks have the slices in turn, 0 to S - 1 and again: written once, where the exchange reads it.
    give = leaves[0].new_empty(world // slices, slices, len(held[rank]), width)
    for place, node in enumerate(held[rank]):
        total = _add(node, odd, mine)
        total = torch.nn.functional.pad(total, (0, slices * width - len(total))) if len(total) % slices else total
        give[:, :, place] = total.view(slices, width)
    take = give.new_empty(sum(map(len, held)), width)
    lengths = [len(nodes) * width for nodes in held]
    request = dist.all_to_all_single(
        take.view(-1), give.view(-1), lengths, [lengths[rank]] * world, group=group, async_op=True
    )
    inside()
    request.wait()
    return _add(root, odd, dict(zip((node for nodes in held for node in nodes), take, strict=True)))


def allreduce(leaves: Sequence[Tensor], group: dist.ProcessGroup, inside: Inside = _nothing) -> Tensor:
    """Sum this rank's leaves left to right, then by the backend's all-reduce, in its own order."""
    total = leaves[0].clone()
    for leaf in leaves[1:]:
        total = total + leaf
    request = dist.all_reduce(total, group=group, async_op=True)
    inside()
    request.wait()
    return total


def _recursive_doubling(total: Tensor, group: dist.ProcessGroup, inside: Inside) -> Tensor:
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
