"""Launchers: how the ranks of one attempt are started and watched. One file each.

A launcher has one function, ``launch(spec, folder, root, recorder, bound)``: it runs a whole leg,
leaves records in ``folder/records`` and output in ``folder/stdout``, and returns when no process is left.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def get(name: str) -> Callable[..., None]:
    """The ``launch`` of ``takeback/launchers/<name>.py``."""
    launch: Callable[..., Any] = importlib.import_module(f"takeback.launchers.{name}").launch
    return launch
