"""Launchers: how the ranks of one attempt are started and watched. One file each.

A launcher is a module with

``PARAMETERS: dict``
    Their names and usual values, as a literal; an experiment names others under ``with``. By it a launcher is known.
``launch(spec, folder, root, recorder, bound)``
    Run a whole leg, leave records in ``folder/records`` and output in ``folder/stdout``, and return when no process is
    left. It starts the ranks with the probe's variables, and lets an :class:`~takeback.launchers.injector.Injector`
    strike them. Of each rank it records ``launched`` and ``exited``, with the worker group (``attempt``) it was of.
``RESTARTS: bool``, if true
    It may start the ranks again: a leg then holds several attempts, and an experiment may say ``resume_by: launcher``.
``VICTIMS: list[str]``, if it has more than ``ranks`` that a fault can strike
    Such as ``agents``, its own processes, and ``nodes``, which are agents with their ranks. ``nproc`` among its
    parameters says how many ranks a node has.
``EVERY_LEG: bool``, if true
    It says where ranks run, so that reference, twin and resumed run are started by it too; else by ``local``.
``FAULTS: list[str]``, if it can't have all of them
    Those that it can.
``OFFERS: list[str]``, if a fault can ask it for more than it has victims
    What a fault may name as ``NEEDS``, such as ``scheduler``; the fault finds it in ``injection.launcher``.
``unavailable() -> str | None``, if it needs root or a program
    Why it can't be had here.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from takeback.leg import launcher_of


def get(launcher: str | dict[str, Any]) -> ModuleType:
    """The launcher in ``takeback/launchers/<name>.py``."""
    return importlib.import_module(f"takeback.launchers.{launcher_of(launcher)}")


def parameters(launcher: str | dict[str, Any]) -> dict[str, Any]:
    """A launcher's parameters, the usual values included."""
    given = {} if isinstance(launcher, str) else launcher.get("with", {})
    return {**get(launcher).PARAMETERS, **given}


def unavailable(launcher: str | dict[str, Any]) -> str | None:
    """Why it can't be had on this machine, or None."""
    module = get(launcher)
    return module.unavailable() if hasattr(module, "unavailable") else None


def machines(spec: dict[str, Any]) -> int:
    """How many machines a leg's ranks are on: several, if its launcher has hosts."""
    if not getattr(get(spec["launcher"]), "EVERY_LEG", False):
        return 1
    return -(-spec["world"] // parameters(spec["launcher"])["nproc"])


def ranks_here(spec: dict[str, Any]) -> int:
    """How many ranks of a leg one machine must have devices for: all of them, unless its launcher has several."""
    if machines(spec) == 1:
        return spec["world"]
    return min(spec["world"], parameters(spec["launcher"])["nproc"])
