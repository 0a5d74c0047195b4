"""Overlay of loss curves: reference, killed attempt and what was resumed, with the difference in ULP beneath.

One figure a backend and world, one column a kill. A difference of exactly 0 lies on the line of zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.lines import Line2D

from takeback.bits import ulp_distance
from takeback.figures import fields, style

MOST, ACROSS = 8, 4  # kills of one figure and of one row; the title says how many there are
_SHARED, _WHERE = {"backend", "world", "resume_world"}, {"kill_step", "point"}


def overlay(experiment: Any, backend: str, world: int, evidence_of: Callable[[str], Any], out: Path) -> Path:
    """Write the overlay of all cells of ``backend`` and ``world`` (controls not among them) to ``out`` as SVG.

    Args:
        experiment: takeback.matrix.Experiment.
        evidence_of: evidence of a leg id; its ``losses`` and ``events`` are used, and both may be empty.
    """
    style.use()
    evidence_of = cache(evidence_of)  # legs are shared by the cells of a figure
    kills: dict[tuple, list[Any]] = {}
    for cell in experiment.cells:
        if cell.control is None and cell.axes.get("backend") == backend and cell.axes.get("world") == world:
            kills.setdefault(tuple(sorted((k, v) for k, v in cell.axes.items() if k not in _SHARED)), []).append(cell)
    ran = {key: cells for key, cells in kills.items() if len(evidence_of(cells[0].reference.id).losses)}
    usual = {axis: Counter(dict(key).get(axis) for key in ran).most_common(1)[0][0] for key in ran for axis, _ in key}

    def place(key: tuple) -> tuple[int, int]:
        """The plain kills first, in the order of their steps, then those that differ from most."""
        axes = dict(key)
        return sum(v != usual[a] for a, v in key if a not in _WHERE), axes.get("kill_step") or 0

    shown = {key: ran[key] for key in sorted(ran, key=place)[:MOST]}
    name = f"{backend}, world {world}" + (
        f" ({len(shown)} of {len(kills)} kills)" if shown.keys() != kills.keys() else ""
    )
    if not shown:
        figure = plt.figure(figsize=(4, 0.5))
        figure.text(0, 0.5, f"{name}: did not run", va="center")
        return style.save(figure, out, f"{name}: did not run")
    titles = _titles([dict(key) for key in shown])
    worlds = sorted({cell.axes.get("resume_world", world) for cells in shown.values() for cell in cells})
    figure, pairs = _grid(len(shown))
    largest = 0
    for cells, title, (top, bottom) in zip(shown.values(), titles, pairs, strict=True):
        top.set_title(title, fontsize=9)
        found = _column(top, bottom, cells, worlds, evidence_of)
        largest = max(largest, found)
        if found == 0:
            bottom.text(0.98, 0.9, "0 at every step", transform=bottom.transAxes, ha="right", va="top", fontsize=8,
                        bbox={"fc": style.PAPER, "ec": "none", "pad": 1.5})  # fmt: skip
    _ulp_axis(pairs[0][1], largest)
    _legend(figure, worlds, name)
    return style.save(
        figure, out, f"Loss of reference, killed and resumed legs on {name}; largest difference {largest} ULP"
    )


def _grid(count: int) -> tuple[Any, list[tuple[Any, Any]]]:
    """A figure and its (loss, ULP) pairs of axes, in rows of four, all on common scales."""
    across = min(count, ACROSS)
    down = -(-count // across)
    figure = plt.figure(figsize=(0.3 + 2.4 * across, 3.5 * down))
    outer = figure.add_gridspec(down, across, wspace=0.09, hspace=0.3, left=0, right=1, bottom=0, top=1)
    pairs: list[tuple[Any, Any]] = []
    for number in range(count):
        inner = outer[number // across, number % across].subgridspec(2, 1, height_ratios=[2, 1], hspace=0.12)
        first = pairs[0] if pairs else (None, None)
        top = figure.add_subplot(inner[0], sharex=first[0], sharey=first[0])
        bottom = figure.add_subplot(inner[1], sharex=top, sharey=first[1])
        left = number % across == 0
        top.tick_params(labelbottom=False, labelleft=left)
        bottom.tick_params(labelleft=left)
        bottom.set_xlabel("global step")
        top.set_ylabel("loss" if left else "")
        bottom.set_ylabel("ULP from\nreference" if left else "")
        pairs.append((top, bottom))
    return figure, pairs


def curve(losses: pd.DataFrame) -> pd.DataFrame:
    """The global loss of each step: one row an attempt and step, from the lowest rank that told it."""
    return losses.sort_values(["attempt", "step", "rank"]).drop_duplicates(["attempt", "step"])


def _column(top: Any, bottom: Any, cells: list[Any], worlds: list[int], evidence_of: Callable[[str], Any]) -> int:
    """Draw one kill; returns the largest distance in ULP."""
    # Where the topology changes by a handover, the reference changes it too: no measure for the killed leg.
    plain = [cell for cell in cells if "handover" not in cell.against]
    reference = curve(evidence_of((plain or cells)[0].reference.id).losses)
    label = top.get_ylabel()
    sns.lineplot(reference, x="step", y="loss", ax=top, color=style.ROLES["reference"], lw=5, alpha=0.5, estimator=None)
    top.set(xlabel="", ylabel=label)
    bottom.axhline(0, color=style.ROLES["reference"], lw=5, alpha=0.5, zorder=1)
    largest = 0
    for killed in {cell.killed.id: cell.killed for cell in cells}.values():
        evidence = evidence_of(killed.id)
        drawn = curve(evidence.losses)
        colour = style.ROLES["killed"]
        for _, attempt in drawn.groupby("attempt"):
            top.plot(attempt.step, attempt.loss, color=colour, lw=1.4, zorder=3)
        if len(drawn):
            last = drawn.iloc[-1]
            top.plot(last.step, last.loss, "X", color=colour, ms=8, mec=style.PAPER, mew=0.8, zorder=20)
            for axis in (top, bottom):
                axis.axvline(last.step, color=colour, lw=1, ls=(0, (2, 2)), zorder=2)
            if plain:
                shape = {"marker": "_", "ms": 6, "mew": 1.4, "zorder": 3}
                largest = max(largest, _distance(bottom, drawn, reference, colour, **shape))
    for cell in cells:
        place = worlds.index(cell.axes.get("resume_world", cell.resumed.world))
        shape = _shape(place, len(worlds))
        evidence, own = evidence_of(cell.resumed.id), curve(evidence_of(cell.reference.id).losses)
        drawn, colour = curve(evidence.losses), style.ROLES["resumed"]
        top.plot(drawn.step, drawn.loss, color=colour, ls="", zorder=4 + place, **shape)
        restored = restored_step(evidence.events)
        if restored is not None and len(drawn):
            for axis in (top, bottom):
                axis.axvline(restored + 0.5, color=colour, lw=1, zorder=2)
            largest = max(largest, _distance(bottom, drawn, own, colour=colour, zorder=4 + place, **shape))
    return largest


def restored_step(events: pd.DataFrame) -> int | None:
    """Step that the last attempt restored; None where none did."""
    found = events[events.kind == "restored"]
    return None if found.empty else int(found.sort_values("attempt").step.iloc[-1])


def _shape(place: int, count: int) -> dict[str, Any]:
    """Marker of the resume world at ``place``: open shapes, one inside the other where they coincide."""
    return {"marker": style.MARKERS[place % len(style.MARKERS)], "mfc": "none", "mew": 0.9,
            "ms": 1.8 + 4.6 * (count - 1 - place) / max(count - 1, 1)}  # fmt: skip


def _distance(axis: Any, drawn: Any, reference: Any, colour: str, **shape: Any) -> int:
    both = drawn.merge(reference, on=["step", "loss_dtype"], suffixes=("", "_reference"))
    if both.empty:
        return 0
    ulp = np.asarray(ulp_distance(both.loss_bits, both.loss_bits_reference, both.loss_dtype.iloc[0]), float)
    axis.plot(both.step, ulp, color=colour, ls="", clip_on=False, **shape)
    return int(ulp.max())


def _ulp_axis(axis: Any, largest: int) -> None:
    """Logarithmic above 1 and linear below, so that 0 has a place of its own."""
    top = max(1, int(np.ceil(np.log10(max(largest, 1) + 1))))
    powers = [p for p in range(0, top + 1, -(-top // 3)) if p or top < 3]
    axis.set_yscale("symlog", linthresh=1, linscale=0.8)
    axis.set_ylim(-0.5, 10.0**top * 1.5)
    axis.set_yticks([0, *(10.0**p for p in powers)], ["0", *(f"{10**p}" if p < 4 else f"$10^{{{p}}}$" for p in powers)])
    axis.minorticks_off()
    axis.xaxis.get_major_locator().set_params(integer=True)


def _titles(kills: list[dict[str, Any]]) -> list[str]:
    """When each was killed, and in what it differs from most of the others."""
    where = {"step": "after step {}", "saved": "after the save of step {}", None: "at step {}"}
    unusual = fields.names([{k: v for k, v in kill.items() if k not in _WHERE} for kill in kills])
    found = []
    for kill, more in zip(kills, unusual, strict=True):
        point = kill.get("point")
        when = where.get(point, f"at {point} of step {{}}").format(kill.get("kill_step", "?"))
        found.append(f"killed {when}" + (f"\n{more}" if more else ""))
    return found


def _legend(figure: Any, worlds: list[int], title: str) -> None:
    lines = [
        Line2D([], [], color=style.ROLES["reference"], lw=5, alpha=0.5, label="reference"),
        Line2D([], [], color=style.ROLES["killed"], lw=1.4, marker="X", mec=style.PAPER, ms=8, label="killed"),
        Line2D([], [], color=style.ROLES["resumed"], lw=1, label="restored here"),
    ] + [
        Line2D([], [], color=style.ROLES["resumed"], ls="", label=f"resumed at {world}", **_shape(n, len(worlds)))
        for n, world in enumerate(worlds)
    ]  # fmt: skip
    height = figure.get_figheight()
    figure.text(0, 1 + 0.82 / height, title, ha="left", va="bottom", fontsize=11, fontweight="bold")
    figure.legend(handles=lines, loc="upper left", bbox_to_anchor=(0, 1 + 0.7 / height), ncols=len(lines),
                  borderaxespad=0, borderpad=0, handletextpad=0.5, columnspacing=1.3)  # fmt: skip
