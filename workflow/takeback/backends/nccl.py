"""nccl: one CUDA device a rank, with every switch that makes its kernels deterministic.

Sources: https://docs.pytorch.org/docs/stable/notes/randomness.html,
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

import os
from typing import Any

DEVICE = "/dev/nvidiactl"
ENVIRONMENT = None


def environment(world: int) -> dict[str, str]:
    return {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may choose another kernel each time
        "NCCL_ALGO": "Ring",  # else NCCL chooses by message size and topology
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # count devices without a CUDA context: we fork afterwards
    }


def unavailable(world: int) -> str | None:
    if not os.path.exists(DEVICE):
        return "no CUDA device"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    import torch.distributed as dist

    if torch.version.cuda is None or not dist.is_nccl_available():
        return f"torch {torch.__version__} is built without CUDA and NCCL"
    count = torch.cuda.device_count()
    if count == 0:
        return "no CUDA device"
    if count < world:
        return f"{world} ranks need {world} CUDA devices, {count} here"
    return None


def device(local_rank: int) -> str:
    return f"cuda:{local_rank}"


def setup(local_rank: int) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.cuda.set_device(local_rank)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


def describe() -> dict[str, Any]:
    import torch

    return {
        "backend": "nccl",
        "version": ".".join(map(str, torch.cuda.nccl.version())),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "NCCL_ALGO": os.environ.get("NCCL_ALGO"),
    }
