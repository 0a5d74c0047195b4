"""Overlay of loss curves: reference, killed attempt and what was resumed, with the difference in ULP beneath.

One figure a backend and world, one column a kill. A difference of exactly 0 lies on the line of zeros; a column
says "0 at every step" only where every step that is due is there and has the same bits.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.lines import Line2D

from takeback.figures import fields, panels, style
from takeback.figures.distance import Distance, distance

TITLE, LINES = 34, 2  # letters in a line of a title, and lines that say what is unusual: more would reach the row above
MOST = 8  # kills of one figure; the title says how many there are
_SHARED, _WHERE = {"backend", "world", "resume_world"}, {"kill_step", "point"}


def overlay(experiment: Any, backend: str, world: int, evidence_of: Callable[[str], Any], out: Path) -> Path:
    """Write the overlay of all cells of ``backend`` and ``world`` (controls not among them) to ``out`` as SVG.

    Args:
        experiment: takeback.experiment.Experiment.
        evidence_of: evidence of a leg id, of which ``losses`` and ``events`` are used; both may be empty.
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
    figure, pairs = panels.grid(len(shown))
    largest, flawed, heads = 0, False, []
    for cells, title, (top, bottom) in zip(shown.values(), titles, pairs, strict=True):
        heads.append(top.set_title(title, fontsize=9))
        found, flaws = _column(top, bottom, cells, worlds, evidence_of)
        largest, flawed = max(largest, found), flawed or bool(flaws)
        note = "\n".join(flaws) or ("" if found else "0 at every step")
        if note:
            bottom.text(0.98, 0.94, note, transform=bottom.transAxes, ha="right", va="top", fontsize=8, zorder=30,
                        bbox={"fc": style.PAPER, "ec": "none", "pad": 1.5})  # fmt: skip
    panels.ulp_axis(pairs[0][1], largest)
    _legend(figure, worlds, name)
    spoken = f"Loss of the reference, killed and resumed runs on {name}; largest difference {largest} ULP"
    spoken += "; not every step could be compared" if flawed else ""
    return style.save(figure, out, spoken, panels.box(figure, pairs, heads))


def curve(losses: pd.DataFrame) -> pd.DataFrame:
    """The global loss of each step: one row an attempt and step, from the lowest rank that told it."""
    return losses.sort_values(["attempt", "step", "rank"]).drop_duplicates(["attempt", "step"])


def _column(
    top: Any, bottom: Any, cells: list[Any], worlds: list[int], evidence_of: Callable[[str], Any]
) -> tuple[int, list[str]]:
    """Draw one kill; returns the largest distance in ULP, and what is not there to be compared."""
    # Where the topology changes by a handover, the reference changes it too: no measure for the killed leg.
    plain = [cell for cell in cells if "handover" not in cell.against]
    measure = (plain or cells)[0].reference
    reference = evidence_of(measure.id).losses
    label = top.get_ylabel()
    sns.lineplot(x=(line := curve(reference)).step.to_numpy(), y=line.loss.to_numpy(), ax=top,
                 color=style.ROLES["reference"], lw=5, alpha=0.5, estimator=None)  # fmt: skip
    top.set(xlabel="", ylabel=label)
    bottom.axhline(0, color=style.ROLES["reference"], lw=5, alpha=0.5, zorder=1)
    largest, flaws = 0, {}
    for killed in {leg.id: leg for cell in cells for leg in cell.lives[:-1] or cell.lives}.values():
        losses = evidence_of(killed.id).losses
        if killed is cells[0].resumed:  # started again by its launcher: all attempts but the last
            losses = losses[losses.attempt < losses.attempt.max()]
        drawn = curve(losses)
        colour = style.ROLES["killed"]
        for _, attempt in drawn.groupby("attempt"):
            top.plot(attempt.step, attempt.loss, color=colour, lw=1.4, zorder=3)
        if len(drawn):
            last = drawn.iloc[-1]
            top.plot(last.step, last.loss, "X", color=colour, ms=8, mec=style.PAPER, mew=0.8, zorder=20)
            for axis in (top, bottom):
                axis.axvline(last.step, color=colour, lw=1, ls=(0, (2, 2)), zorder=2)
            if plain:
                found = distance(losses, reference, None, killed.world == measure.world)
                _dots(bottom, found, colour, marker="_", ms=6, mew=1.4, zorder=3)
                largest = max(largest, found.largest)
                flaws["killed"] = found.flaw
    marked: set[int] = set()
    for cell in cells:
        world = cell.axes.get("resume_world", cell.resumed.world)
        place = worlds.index(world)
        shape = _shape(place, len(worlds)) | {"zorder": 4 + place}
        evidence, own = evidence_of(cell.resumed.id), evidence_of(cell.reference.id).losses
        losses = evidence.losses
        if cell.resumed is cell.killed:
            losses = losses[losses.attempt == losses.attempt.max()]
        drawn, colour = curve(losses), style.ROLES["resumed"]
        top.plot(drawn.step, drawn.loss, color=colour, ls="", **shape)
        restored = restored_step(evidence.events)
        if restored is not None and len(drawn) and restored not in marked:
            marked.add(restored)
            for axis in (top, bottom):
                axis.axvline(restored + 0.5, color=colour, lw=1, zorder=2)
        found = distance(losses, own, restored or 0, world == cell.reference.world)
        _dots(bottom, found, colour, **shape)
        largest = max(largest, found.largest)
        gone = "did not run" if (evidence.events.kind == "not_run").any() else ""
        silent = "no restored step told" if restored is None else ""
        flaws[f"resumed at {world}"] = gone or ("no losses" if drawn.empty else silent or found.flaw)
    return largest, _listed(flaws)


def _dots(axis: Any, found: Distance, colour: str, **shape: Any) -> None:
    axis.plot(found.steps, found.ulp, color=colour, ls="", clip_on=False, **shape)


def _listed(flaws: dict[str, str]) -> list[str]:
    """Two of them at most, each with what it concerns; the rest is counted."""
    lines = [f"{what}: {flaw}" for what, flaw in flaws.items() if flaw]
    return lines if len(lines) < 3 else [lines[0], f"and {len(lines) - 1} more"]


def restored_step(events: pd.DataFrame) -> int | None:
    """Step that the last attempt restored; None where none did."""
    found = events[events.kind == "restored"]
    return None if found.empty else int(found.sort_values("attempt").step.iloc[-1])


def _shape(place: int, count: int) -> dict[str, Any]:
    """Marker of the resume world at ``place``: open shapes, one inside the other where they coincide."""
    return {"marker": style.MARKERS[place % len(style.MARKERS)], "mfc": "none", "mew": 0.9,
            "ms": 1.8 + 4.6 * (count - 1 - place) / max(count - 1, 1)}  # fmt: skip


def _titles(kills: list[dict[str, Any]]) -> list[str]:
    """When each was killed, and in what it differs from most of the others."""
    where = {"step": "after step {}", "saved": "after the save of step {}", None: "at step {}"}
    unusual = fields.names([{k: v for k, v in kill.items() if k not in _WHERE} for kill in kills])
    found = []
    for kill, more in zip(kills, unusual, strict=True):
        point = kill.get("point")
        when = where.get(point, f"at {point} of step {{}}").format(kill.get("kill_step", "?"))
        found.append("\n".join([f"killed {when}", *textwrap.wrap(more, TITLE, max_lines=LINES, placeholder=" …")]))
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
