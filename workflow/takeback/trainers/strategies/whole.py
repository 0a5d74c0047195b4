"""Whole tensors of sharded ones: many of them by one all-gather, where ``full_tensor()`` makes one each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

_ALIGNED = 8  # bytes: a part begins where a tensor of any dtype may


def whole(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor whole, on every rank: one all-gather for all that are sharded along one dimension of one mesh.

    A collective of all ranks that hold parts of them. Tensors that are no DTensor stay what they are. What is sharded
    along several dimensions of its mesh was split along the last of them first, as ``fully_shard`` does it over
    tensor-parallel parameters, and is put together along the first one first.
    """
    parts = [tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    together: dict[tuple[Any, int], list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        if isinstance(tensor, DTensor):
            for place, placement in enumerate(tensor.placements):
                if not placement.is_replicate():
                    together[tensor.device_mesh, place].append(number)
    for mesh, place in sorted(together, key=lambda key: key[1]):
        numbers = together[mesh, place]
        joints = [(tensors[number].placements[place].dim, _length(tensors[number], place)) for number in numbers]
        joined = _gather([parts[number] for number in numbers], joints, mesh.get_group(place))
        for number, tensor in zip(numbers, joined, strict=True):
            parts[number] = tensor
    return parts


def whole_values(state: Any) -> Any:
    """``state`` (nested mappings and lists) with every tensor whole."""
    found: list[Tensor] = []
    mapped(state, found.append)
    if not any(isinstance(tensor, DTensor) for tensor in found):
        return state
    tensors = iter(whole(found))
    return mapped(state, lambda _: next(tensors))


def mapped(state: Any, visit: Callable[[Tensor], Any]) -> Any:
    """``state`` (nested mappings and lists) with what ``visit`` returns in place of each tensor."""
    if isinstance(state, Tensor):
        return visit(state)
    if isinstance(state, Mapping):
        return {key: mapped(value, visit) for key, value in state.items()}
    if isinstance(state, list):
        return [mapped(value, visit) for value in state]
    return state


def _chunk(length: int, ranks: int) -> list[int]:
    """How many rows each rank has: what ``torch.chunk`` gives, and nothing for ranks that it leaves out."""
    most = -(-length // ranks)
    return [max(0, min(most, length - rank * most)) for rank in range(ranks)]


def _length(tensor: DTensor, place: int) -> int:
    """Rows of ``tensor`` when it is put together along ``place`` of the mesh, and along those after it not yet."""
    mesh, dim = tensor.device_mesh, tensor.placements[place].dim
    length = tensor.shape[dim]
    for later in reversed(range(place + 1, mesh.ndim)):
        placement = tensor.placements[later]
        if not placement.is_replicate() and placement.dim == dim:
            length = _chunk(length, mesh.size(later))[mesh.get_local_rank(later)]
    return length


def _gather(parts: list[Tensor], joints: list[tuple[int, int]], group: dist.ProcessGroup) -> list[Tensor]:
    """Put all ranks' ``parts`` together, each along the dimension and to the length of its joint."""
    world = dist.get_world_size(group)
    shapes = [
        [[*part.shape[:dim], rows, *part.shape[dim + 1 :]] for rows in _chunk(length, world)]
        for part, (dim, length) in zip(parts, joints, strict=True)
    ]
    rooms = [max(_room(shape, part.element_size()) for shape in own) for own, part in zip(shapes, parts, strict=True)]
    send = torch.zeros(sum(rooms), dtype=torch.uint8, device=parts[0].device)
    for part, place in zip(parts, send.split(rooms), strict=True):
        raw = part.contiguous().reshape(-1).view(torch.uint8)
        place[: raw.numel()] = raw
    take = send.new_empty(world * len(send))
    dist.all_gather_single(take, send, group=group)
    rows = [row.split(rooms) for row in take.view(world, -1)]
    return [
        torch.cat([_typed(row[number], shape, part.dtype) for row, shape in zip(rows, own, strict=True)], dim=dim)
        for number, (part, own, (dim, _)) in enumerate(zip(parts, shapes, joints, strict=True))
    ]


def _room(shape: list[int], size: int) -> int:
    return -(-math.prod(shape) * size // _ALIGNED) * _ALIGNED


def _typed(raw: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    return raw.view(dtype)[: math.prod(shape)].view(shape)
