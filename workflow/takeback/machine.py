"""Facts of a leg: of this machine, of what is installed and of the package's sources; nothing here runs a kernel.

A fingerprint holds what changes the bits of a kernel; two legs with the same fingerprint, source and
settings are expected to have the same bits, and nothing else is.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from takeback import __version__, sources
from takeback.leg import digest

_FEATURES = {
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_bf16", "asimd", "asimddp", "bf16", "sve", "sve2", "i8mm"),
}
_PACKAGES = ("torch", "numpy", "pandas", "pyarrow", "snakemake", "seaborn", "matplotlib")
_STORE = ("swift", "s3fs")  # server and client of an object store
_FLAGS = re.compile(
    r"(OMP|MKL|KMP|ATEN|CUBLAS|CUDA|CUDNN|NVIDIA|NCCL|GLOO|TORCH|XLA|TPU|JAX|LIBTPU|PYTHONHASHSEED)(_|$)"
)


#: What the processor must have for a build of torch's CPU kernels (ATen/native/DispatchStub.cpp). Torch itself does
#: not look where ATEN_CPU_CAPABILITY names one: its ranks would end by SIGILL.
NEEDS = {"default": (), "avx2": ("avx2", "fma"), "avx512": ("avx512bw", "avx512dq", "avx512vl", "fma")}
#: Events in which ranks tell the kernels and threads that they have.
TOLD_IN = ("described", "restored")


def lacks(capability: str) -> str | None:
    """Why the kernels of ``capability``, a key of :data:`NEEDS`, can't run here, or None."""
    missing = [feature for feature in NEEDS[capability] if feature not in cpu()[1].split()]
    return f"this processor has no {', '.join(missing)}, which {capability} kernels need" if missing else None


def of_leg(
    spec: Mapping[str, Any],
    described: Mapping[str, Any],
    environment: Mapping[str, str],
    measured: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Facts of one leg, to be asked for in the process that launched it, after its ranks have ended.

    Args:
        spec: the leg as in ``leg.json``.
        described: what its trainer told by ``probe.describe``.
        environment: variables that its ranks were started with.
        measured: what its ranks found that they have, ``kernels`` and ``threads``; any number a rank.
    """
    settings = spec["trainer"].get("settings", {})
    facts = {
        "fingerprint": fingerprint(spec, described, environment, measured),
        "host": {"os": platform.platform(), "machine": platform.machine(), "cores": str(os.cpu_count())},
        "software": software(*(_STORE if "store" in spec["trainer"] else ())),
        "source": source(),
        "trainer": {"facts": dict(described), "settings": dict(settings)},
        "flags": {k: v for k, v in sorted(environment.items()) if _FLAGS.match(k)}
        | {name: told for name, told in bridge(described).items() if "deterministic" in name or "tf32" in name},
    }
    return {**facts, "id": digest(facts, 16)}


def bridge(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the ranks told of their backend and device, if they did."""
    told = described.get("bridge")
    return told if isinstance(told, Mapping) else {}


def software(*more: str) -> dict[str, str]:
    """Versions of what the suite and its trainers build on, and of ``more`` packages."""
    found = {name: version(name) for name in (*_PACKAGES, *more)}
    own = {"takeback": __version__, "python": platform.python_version()}
    return own | {name: number for name, number in found.items() if number}


def fingerprint(
    spec: Mapping[str, Any],
    described: Mapping[str, Any],
    environment: Mapping[str, str],
    measured: Sequence[Mapping[str, Any]] = (),
) -> dict[str, str]:
    """What changes the bits of kernels, as a flat mapping; arguments as of :func:`of_leg`.

    What the ranks told of themselves counts before what this process sees; what they were asked for does not count.
    """
    model, features = cpu()
    told = bridge(described)
    measured = [told, *measured]
    threads = _all(measured, "threads") or environment.get("OMP_NUM_THREADS")
    found = {
        "device": model if told.get("device", "cpu") == "cpu" else told["device"],
        "cpu_model": model,
        "cpu_capability": _all(measured, "kernels") or _capability(),
        "cpu_features": features,
        "threads": threads,
        "bridge": f"{told['backend']}, {told.get('version')}"
        if "backend" in told
        else f"{spec['backend']} (not told by the trainer)",
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
    }
    if "cuda" in told:
        found["cuda"] = told["cuda"]
    return {key: str(value) for key, value in found.items()}


def _all(measured: Sequence[Mapping[str, Any]], name: str) -> str:
    """What all ranks have found; each value where they have found several."""
    return " and ".join(sorted({str(one[name]) for one in measured if one.get(name)}))


@cache
def cpu() -> tuple[str, str]:
    """Model and those vector features that choose kernels, from /proc/cpuinfo where there is one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine(), "unknown"
    lines = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", text.split("\n\n")[0], re.M))
    flags = set((lines.get("flags") or lines.get("Features") or "").split())
    model = lines.get("model name") or " ".join(
        f"{key} {lines[key]}" for key in ("CPU implementer", "CPU part", "CPU revision") if key in lines
    )
    return model or platform.machine(), " ".join(sorted(_FEATURES & flags))


def _capability() -> str:
    """Which build of its CPU kernels torch takes in this process, of which ranks are forks; runs none."""
    try:
        from torch.backends import cpu
    except ImportError:
        return "unknown"
    return cpu.get_cpu_capability()


@cache
def version(package: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def source() -> dict[str, Any]:
    """Commit of the checkout that holds the package's sources, if one does, and their digests by role."""
    digests = {role: sources.digest(role) for role in ("trainer", "nemesis")}
    commit = modified = None
    if _git("ls-files", "--", "machine.py"):
        commit, modified = _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "--", ".", "../schemas"))
    return {"commit": commit or None, "modified": modified, "digests": digests}


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=sources.PACKAGE, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
