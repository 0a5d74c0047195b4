"""The floor: the training steps of an experiment's runs, in processes that run already, and nothing else.

As many groups of ranks a world size as the cores have room for, started once; of each run the steps that it makes in
the suite (a killed run up to the kill, a resumed one from its checkpoint) are made by the reference trainer's own loop,
with its checkpoints and evaluations, and without a probe. What brings a resumed run to its first step is not timed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from takeback.leg import Leg

Job = tuple[dict[str, Any], int, int, str]  # settings, completed steps at the start, last step, folder


def job(leg: Leg, folder: Path) -> Job:
    """The steps that a leg makes."""
    settings = leg.trainer["settings"]
    last = leg.faults[0]["step"] if leg.faults else settings["steps"]
    first = 0
    if leg.parent:  # a kill after the step is told, before anything of it is saved
        first = (leg.parent.faults[0]["step"] - 1) // settings["save_every"] * settings["save_every"]
    return settings, first, last, str(folder / leg.id)


class Floor:
    """The groups of ranks; use it as a context, which starts and ends them."""

    def __init__(self, worlds: Sequence[int], cores: int, folder: Path) -> None:
        self.worlds, self.cores, self.folder = worlds, cores, folder

    def __enter__(self) -> Floor:
        spawn = multiprocessing.get_context("spawn")
        self.groups: dict[int, list[list[Connection]]] = {}
        self.ranks = []
        for world in self.worlds:
            for number in range(max(1, self.cores // world)):
                pipes = []
                for rank in range(world):
                    ours, theirs = spawn.Pipe()
                    store = str(self.folder / f"store-{world}-{number}")
                    self.ranks.append(spawn.Process(target=serve, args=(theirs, store, rank, world), daemon=True))
                    self.ranks[-1].start()
                    pipes.append(ours)
                self.groups.setdefault(world, []).append(pipes)
        for pipe in itertools.chain.from_iterable(itertools.chain.from_iterable(self.groups.values())):
            pipe.recv()  # it has joined its group, and has trained a step
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.join()

    def train(self, legs: Sequence[Leg], folder: Path) -> tuple[float, float]:
        """Wall and CPU seconds of the steps of ``legs``: one world size after the other, its groups side by side."""
        wall = cpu = 0.0
        for world, groups in self.groups.items():
            jobs = [job(leg, folder) for leg in legs if leg.world == world]
            jobs.sort(key=lambda job: job[1] - job[2])  # the longest first, as they are dealt out
            dealt = [jobs[number :: len(groups)] for number in range(len(groups))]
            for share, pipes in zip(dealt, groups, strict=True):
                for pipe in pipes:
                    pipe.send(share)
            costs = [[pipe.recv() for pipe in pipes] for pipes in groups]
            wall += max(max(seconds for seconds, _ in group) for group in costs)
            cpu += sum(seconds for group in costs for _, seconds in group)
        return wall, cpu


def serve(pipe: Connection, store: str, rank: int, world: int) -> None:
    """One rank: join the group, then train what comes, and answer with (wall, CPU) seconds of the training alone."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the trainer's line a step
    import torch.distributed as dist
    from takeback import backends

    backends.get("gloo").setup(rank)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    steps({"steps": 2, "save_every": 2}, 0, 2, f"{store}-first")
    pipe.send("ready")
    while True:
        costs = [steps(*work) for work in pipe.recv()]
        pipe.send(tuple(map(sum, zip(*costs, strict=True))) or (0.0, 0.0))


def steps(settings: dict[str, Any], first: int, last: int, folder: str) -> tuple[float, float]:
    """Wall and CPU seconds of the steps ``first`` + 1 to ``last`` of one run on this group."""
    import time

    import torch
    import torch.distributed as dist
    from takeback.trainers import data, reference, strategies
    from takeback.trainers.build import build
    from takeback.trainers.checkpoints import Checkpoints
    from takeback.trainers.notice import Notice
    from takeback.trainers.settings import Settings

    cfg = Settings(checkpoints=folder, **settings)
    text = data.read_text((cfg.samples + cfg.shards * cfg.batch) * cfg.context + 1)
    share = strategies.of(cfg, cfg.strategy, dist.get_world_size(), torch.device("cpu"))
    state = build(cfg, share)
    checkpoints, notice = Checkpoints(cfg, {}), Notice(cfg.notice)
    windows = data.Windows(text, cfg.context)
    reference.train(cfg, state, windows, checkpoints, share, notice, first)
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    reference.train(cfg, state, windows, checkpoints, share, notice, last)
    dist.barrier()
    return time.perf_counter() - wall, time.process_time() - cpu
