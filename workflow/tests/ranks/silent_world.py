"""What the bridge's own process group says on CPU under torchrun, and what a run makes of it."""

import os

import torch
import torch.distributed as dist
import torch_xla
from takeback.backends.xla import world

try:
    world.ranks(int(os.environ["WORLD_SIZE"]), "xla")
except world.WorldError as error:
    value = torch.full((1,), float(os.environ["RANK"]) + 5).to(torch_xla.device())
    dist.all_reduce(value)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}, sum {value.item() - float(os.environ['RANK'])}: {error}")
