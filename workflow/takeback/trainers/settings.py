"""Settings of the reference trainer: ``--name value`` on its command line, checked at once."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

from takeback import backends
from takeback.trainers import mesh, stores


class SettingsError(ValueError):
    """A setting that can't be used: one line that names it and says what is allowed."""


def _choice(*allowed: str) -> Any:
    return field(default=allowed[0], metadata={"allowed": allowed})


@dataclass(frozen=True)
class Settings:
    """All that determines a run, next to the number of ranks.

    Lengths are in bytes of text (one token a byte), ``batch`` in sequences a micro-batch,
    ``shards`` in micro-batches a global step, ``*_every`` and ``warmup`` in global steps, ``timeout`` in seconds.
    """

    checkpoints: str
    backend: str = "gloo"
    steps: int = 24
    samples: int = 128
    batch: int = 2
    shards: int = 8
    save_every: int = 4
    keep: int = 3
    evaluate_every: int = 8
    context: int = 32
    width: int = 32
    layers: int = 2
    heads: int = 2
    dropout: float = 0.1
    learning_rate: float = 3e-3
    warmup: int = 4
    weight_decay: float = 0.1
    clip: float = 1.0
    ema: float = 0.9
    seed: int = 1234
    timeout: float = 0.0
    survivors: str = _choice("exit", "reinit")
    strategy: str = _choice(*mesh.STRATEGIES)
    shard_ranks: int = 2
    tensor_ranks: int = 2
    precision: str = _choice("fp32", "bf16")
    format: str = _choice("file", "dcp", "dcp-async")
    staging: str = _choice("copy", "reference")
    loader: str = _choice("inline", "workers")
    reduction: str = _choice("fixed-order", "allreduce", "buckets")
    buckets: str = _choice("rebuilt", "find_unused", "warmed")
    bucket_mb: float = 0.0
    rng: str = _choice("keyed", "stream")
    streams: str = _choice("by_rank", "one_key")
    optimizer_by: str = _choice("name", "position")
    order: str = _choice("declared", "reversed")
    deal: str = _choice("anew", "count", "position")
    forget: str = _choice("none", "rng", "optimizer", "sampler", "schedule", "ema", "best", "checkpoint")
    rounded: str = _choice("none", "moments", "masters")
    stale: int = -1
    agreement: str = _choice("check", "none")
    heal: str = _choice("none", "ddp")
    notice: str = _choice("ignore", "agree", "alone")
    write: str = _choice("whole", "fsync_file", "rename", "in_place")
    verify: str = _choice("checksum", "nothing")
    damaged: str = _choice("refuse", "fallback")
    reload: str = _choice("never", "unfenced", "after", "both")
    find: str = _choice("pointer", "names")
    prune: str = _choice("no", "yes")
    slow: float = 0.0
    handover: str = ""

    @property
    def steps_an_epoch(self) -> int:
        return self.samples // (self.shards * self.batch)

    def phases(self, world: int) -> list[tuple[int, int, str]]:
        """(ranks, last step, strategy) of each stretch of the run: two with a handover, else one."""
        if not self.handover:
            return [(world, self.steps, self.strategy)]
        first, step, second, *other = self.handover.split(":")
        return [(int(first), int(step), self.strategy), (int(second), self.steps, *(other or [self.strategy]))]


_POSITIVE = [
    "steps",
    "samples",
    "batch",
    "shards",
    "save_every",
    "keep",
    "evaluate_every",
    "context",
    "width",
    "layers",
    "heads",
    "shard_ranks",
    "tensor_ranks",
]


def check(settings: Settings, world: int) -> None:
    """Raise :class:`SettingsError` at the first setting that makes no sense with ``world`` ranks."""
    for name in _POSITIVE:
        if getattr(settings, name) < 1:
            raise SettingsError(f"--{name}: {getattr(settings, name)} is too small; at least 1")
    for name, low, high in (("dropout", 0, 1), ("ema", 0, 1)):
        if not low <= getattr(settings, name) < high:
            raise SettingsError(f"--{name}: must be at least {low} and below {high}")
    for name in ("learning_rate", "clip"):
        if not getattr(settings, name) > 0:
            raise SettingsError(f"--{name}: must be above 0")
    for name in ("warmup", "weight_decay", "seed", "timeout", "bucket_mb"):
        if getattr(settings, name) < 0:
            raise SettingsError(f"--{name}: must not be below 0")
    if settings.width % settings.heads:
        raise SettingsError(f"--heads: {settings.heads} does not divide --width {settings.width}")
    if settings.steps_an_epoch < 1:
        need = settings.shards * settings.batch
        raise SettingsError(f"--samples: {settings.samples} is less than one step of shards x batch = {need}")
    if settings.handover:
        _check_handover(settings, world)
    for ranks, _, strategy in settings.phases(world):
        try:
            dimensions = mesh.dimensions(strategy, ranks, settings.shard_ranks, settings.tensor_ranks)
        except ValueError as error:
            raise SettingsError(f"--strategy: {error}") from None
        try:
            mesh.check_together(
                strategy, settings.reduction, settings.optimizer_by, settings.format, settings.precision
            )
        except ValueError as error:
            raise SettingsError(f"--{error}") from None
        if settings.shards % mesh.data_ranks(dimensions):
            raise SettingsError(
                f"--shards: {settings.shards} can't be dealt evenly to {mesh.data_ranks(dimensions)} ranks"
            )
        if settings.heads % dimensions.get("tensor", 1):
            raise SettingsError(f"--heads: {settings.heads} can't be dealt evenly to {dimensions['tensor']} ranks")
    if settings.write != "whole" and stores.is_url(settings.checkpoints):
        raise SettingsError(f"--write: {settings.write} is a way to write to a folder, not to {settings.checkpoints}")
    if settings.reload != "never" and settings.format != "file":
        raise SettingsError(f"--reload: {settings.reload} needs --format file, not {settings.format}")
    if settings.timeout and settings.strategy not in ("ddp", "single"):
        raise SettingsError(f"--timeout: not with strategy {settings.strategy}, whose groups have the library's own")


def _check_handover(settings: Settings, world: int) -> None:
    try:
        first, step, second = map(int, settings.handover.split(":")[:3])
    except ValueError:
        raise SettingsError(f"--handover: {settings.handover!r} is not ranks:step:ranks, as in 4:8:2") from None
    if settings.phases(world)[1][2] not in mesh.STRATEGIES:
        raise SettingsError(
            f"--handover: {settings.phases(world)[1][2]!r} is no strategy; one of: {', '.join(mesh.STRATEGIES)}"
        )
    if min(first, second) < 1 or not 0 < step < settings.steps:
        raise SettingsError(f"--handover: needs ranks of at least 1 and a step from 1 to {settings.steps - 1}")
    if max(first, second) != world:
        raise SettingsError(f"--handover: {settings.handover} needs {max(first, second)} ranks, {world} launched")


class _OneLine(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse(argv: list[str] | None, world: int, *, prog: str, description: str | None) -> Settings:
    """Settings from a command line; a mistake is one line on stderr and exit status 2."""
    parser = _OneLine(
        prog=prog,
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for entry in dataclasses.fields(Settings):
        name = f"--{entry.name}"
        if entry.name == "checkpoints":
            parser.add_argument(name, required=True, help="folder or URL (s3://bucket/run) for the checkpoints")
        else:
            choices = backends.names() if entry.name == "backend" else entry.metadata.get("allowed")
            parser.add_argument(
                name,
                type=type(entry.default),
                default=entry.default,
                choices=choices,
                help="default: %(default)s",
            )
    settings = Settings(**vars(parser.parse_args(argv)))
    try:
        check(settings, world)
    except SettingsError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        sys.exit(2)
    return settings
