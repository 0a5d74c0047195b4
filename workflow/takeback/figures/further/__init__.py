"""Further figures, which an experiment asks for by ``figures: [NAME]``. One file each.

A module has ``TITLE`` and ``TEXT`` (literals, for the page), ``draw(experiment, verdicts, out, evidence_of) -> Path``
(an SVG; ``evidence_of`` gives the losses and events of a leg id as frames) and ``table(experiment, verdicts) ->
tuple[list[str], list[list[str]]]``, the same in words: heads of columns, and rows.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def get(name: str) -> ModuleType:
    """The figure in ``takeback/figures/further/<name>.py``."""
    return importlib.import_module(f"takeback.figures.further.{name}")
