"""A program of a group's ranks: loads a checkpoint into a live state, and tells whose memory the values are in.

``python in_place.py --checkpoints FOLDER …`` with the reference trainer's settings; one JSON object on stdout.
"""

import json

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp_api
from takeback import probe
from takeback.trainers import data, settings, strategies, topology
from takeback.trainers.build import build
from takeback.trainers.checkpoints import CheckpointError, Checkpoints
from torch.distributed.tensor import DTensor


def addresses(values):
    """Address of each tensor's memory on this rank, by name."""
    local = {name: t.to_local() if isinstance(t, DTensor) else t for name, t in probe.flatten(values)
             if isinstance(t, torch.Tensor)}  # fmt: skip
    return {name: tensor.data_ptr() for name, tensor in local.items()}


def main():
    cfg = settings.parse(None, topology.world_from_environment(), prog="in_place", description=None)
    topology.join(cfg.backend, torch.device("cpu"))
    share = strategies.of(cfg, cfg.strategy, dist.get_world_size(), torch.device("cpu"))
    text = data.read_text((cfg.samples + cfg.shards * cfg.batch) * cfg.context + 1)
    shape = {name: getattr(cfg, name) for name in ["width", "layers", "heads", "context", "samples", "shards", "batch"]}
    state = build(cfg, share)
    before, digest = addresses(dict(state.model.named_parameters())), state.digest()
    library, seen = dcp_api.load, {}

    def load(template, **options):
        seen["template"] = addresses(template)
        library(template, **options)
        seen["loaded"] = addresses(template)

    dcp_api.load = load
    error = ""
    try:
        Checkpoints(cfg, {**shape, "text": text.sha256}).restore(state, share)
    except CheckpointError as refused:
        error = str(refused)
    print(json.dumps({
        "error": error,
        "step": state.step,
        "tensors": len(seen["template"]),
        "template in place": seen.get("loaded") == seen["template"],
        "parameters in place": addresses(dict(state.model.named_parameters())) == before,
        "state as before": state.digest() == digest,
    }))  # fmt: skip
    dist.destroy_process_group()


main()
