"""A DCP directory that is written in the background, from a copy of the state at the instant of the call.

A thread of each rank writes and, with a process group of its own, completes the checkpoint in the same steps as
:mod:`.dcp`; the training goes on meanwhile. A save that failed is told on every rank by the next save or at the end.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp_api
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from takeback import probe
from takeback.trainers.checkpoints import Checkpoints, dcp
from takeback.trainers.state import State


class _LiveTensors(BlockingAsyncStager):
    """A bug on purpose: what is written is the tensors of the model that goes on learning."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return state_dict


#: DCP's own copies every tensor to fresh memory before ``async_save`` returns, on the CPU too (torch 2.13).
_STAGERS = {"copy": BlockingAsyncStager, "reference": _LiveTensors}


class Format(dcp.Format):
    """See the module."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        super().__init__(checkpoints)
        self.thread = ThreadPoolExecutor(1)
        self.pending: Future | None = None
        self.groups: dict[dist.ProcessGroup, dist.ProcessGroup] = {}

    def save(self, step: int, state: State, group: dist.ProcessGroup) -> None:
        self.wait()
        probe.point("save.begin", step)
        own = self._own(group)
        name, writer, files = self.prepare(step, group)
        written = dcp_api.async_save(
            state.snapshot(group, whole=False),
            storage_writer=writer,
            async_stager=_STAGERS[self.cfg.staging](),
            planner=dcp.Planner(step, self.cfg.slow),
            process_group=own,
        )
        self.pending = self.thread.submit(self._complete, written, name, step, files, own)

    def wait(self) -> None:
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.result()

    def _complete(self, written: Future, name: str, step: int, files: dcp.Files, group: dist.ProcessGroup) -> None:
        with dcp.one_line(self.store.place(name)):
            written.result()
        self.complete(name, step, files, group)

    def _own(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """A group of the same ranks for the background's collectives: those of the training come in another order."""
        if group not in self.groups:
            ranks = dist.get_process_group_ranks(group)
            self.groups[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        return self.groups[group]
