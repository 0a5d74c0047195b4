"""Somebody else's training script: plain torch and DDP, its own loop. Three calls tell Takeback what it did."""

import os
import sys

import torch
import torch.distributed as dist
from takeback import probe
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
folder = sys.argv[1]
path = os.path.join(folder, "checkpoint.pt")
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
data = torch.randn(64, 8)
target = data.sum(dim=1, keepdim=True).sin()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
start = 0
if os.path.exists(path):
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
dist.barrier()
probe.restored(start)

for step in range(start + 1, 13):
    order = torch.randperm(64, generator=torch.Generator().manual_seed((step - 1) // 4))
    ids = order[(step - 1) % 4 * 16 :][:16][rank::world]
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(data[ids]), target[ids])
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    probe.step(step, total / world, epoch=(step - 1) // 4, samples=ids.tolist())
    if step % 4 == 0:
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
            os.replace(path + ".new", path)
        dist.barrier()
        probe.saved(step)
dist.destroy_process_group()
