"""Words for diagnoses: ranges, counts, and what the loss of a kind of state is called."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import numpy as np

#: What it means if entries of this prefix differ right after the load; the first match counts.
LESSONS = (
    ("model.", "the weights were not restored"),
    ("optimizer.exp_avg", "optimizer moments were lost"),
    ("optimizer.step", "the optimizer's step count is another: its bias correction is that of another step"),
    ("optimizer.group", "the optimizer's settings were not restored: the learning rate is another"),
    ("optimizer.", "optimizer state was lost"),
    ("schedule.", "the learning-rate schedule was restarted"),
    ("ema.", "the averaged weights (EMA) were not restored"),
    ("sampler.epoch", "the sampler's epoch was not restored: another shuffle is replayed"),
    ("sampler.", "the sampler's position was not restored: samples are used again or skipped"),
    ("rng.", "the state of a random number generator was not restored"),
    ("best.", "the best metric was forgotten: a worse model can become the best one"),
    ("step", "the step count was not restored"),
)


def lesson(name: str) -> str:
    """What a difference of the entry ``name`` right after the load teaches; empty if unknown."""
    return next((words for prefix, words in LESSONS if name.startswith(prefix)), "")


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as ``0, 2-4``."""
    numbers, runs = _ascending(numbers), []
    if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
        numbers, runs = [], [[numbers[0], numbers[-1]]]
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _ascending(numbers: Iterable[int]) -> list[int]:
    return sorted(set(numbers.tolist() if isinstance(numbers, np.ndarray) else map(int, numbers)))


def named(what: str, numbers: Iterable[int]) -> str:
    """``rank 1``, ``ranks 1-3``, ``steps 17-19``."""
    numbers = _ascending(numbers)
    return f"{what}{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def signal_named(number: int) -> str:
    """``signal 9 (SIGKILL)``."""
    known = number in {one.value for one in signal.Signals}
    return f"signal {number} ({signal.Signals(number).name})" if known else f"signal {number}"


def count(number: int, what: str, plural: str | None = None) -> str:
    """``1 loss``, ``1,234 state digests``."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"
