"""What one comparison found out about one cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """The answer of one checker.

    Attributes:
        verdict: what this comparison alone makes of the cell; None if it has nothing against it.
        sentence: what it found, in words; with no verdict: what agrees, as a noun phrase.
        compared: what was compared with what, in words; empty if nothing was.
        remark: something that the diagnosis should mention besides.
        first_step: first differing step.
        first_state: first differing state entry by name.
        columns: columns of the verdict's row that this checker fills.
    """

    verdict: str | None = None
    sentence: str = ""
    compared: str = ""
    remark: str = ""
    first_step: int | None = None
    first_state: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
