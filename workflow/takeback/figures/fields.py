"""Where a cell belongs in a figure: its row, column and panel, and names that say only what is unusual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd

MOST = {"columns": 20, "rows": 18, "panels": 10}  # beyond this, neighbours share a field
_SAID = ("hardware", "resume_hardware")  # where they vary, each is said: the most common one is not the usual one
_PLACED = {"world", "resume_world", "kill_step", "point", "try"}  # tries share a field


def place(cells: pd.DataFrame, axes: Iterable[str]) -> pd.DataFrame:
    """Add ``row``, ``column`` and ``panel`` (texts) with the keys that sort rows and columns.

    Args:
        cells: verdicts, one row a cell.
        axes: names of the matrix axes; those that ``cells`` has no values of are ignored.
    """
    cells = cells.copy()
    have = [axis for axis in axes if axis in cells and cells[axis].notna().any()]
    none = pd.Series(0, cells.index)
    world = cells["world"].astype(int) if "world" in have else none
    resume = cells["resume_world"].fillna(world).astype(int) if "resume_world" in have else world
    folded = len(set(zip(world, resume, strict=True))) > MOST["rows"]
    cells["row_key"] = [(a, 0 if folded else b) for a, b in zip(world, resume, strict=True)]
    cells["row"] = [f"{a} → {b or 'any'}" for a, b in cells.row_key]

    kill = cells["kill_step"].fillna(0).astype(int) if "kill_step" in have else none
    point = cells["point"].fillna("").astype(str) if "point" in have else pd.Series("", cells.index)
    cells["column_key"], cells["column"] = _columns(list(kill), list(point))

    others = [axis for axis in have if axis not in _PLACED and cells[axis].nunique(dropna=False) > 1]
    while others and len(cells[others].drop_duplicates()) > MOST["panels"]:
        others.pop()  # the last axes are folded into shares
    cells["panel"] = names(cells[others].astype(object).to_dict("records"), always=others[:1])
    return cells


def _columns(kill: list[int], point: list[str]) -> tuple[list[tuple[int, str]], list[str]]:
    """Keys and texts: a step, or a range of steps if there are many; the point only where it is unusual."""
    usual = Counter(point).most_common(1)[0][0] if point else ""
    shown = ["" if p == usual else p for p in point]
    if len(set(zip(kill, shown, strict=True))) > MOST["columns"]:
        shown = [""] * len(kill)
    steps = sorted(set(kill))
    width = max(1, -(-len(steps) // MOST["columns"]))
    bins = {step: steps[n // width * width :][:width] for n, step in enumerate(steps)}
    keys, texts = [], []
    for k, p in zip(kill, shown, strict=True):
        ends = dict.fromkeys((bins[k][0], bins[k][-1]))
        keys.append((bins[k][0], p))
        texts.append("\u2013".join(map(str, ends)) + (f"\n{p}" if p else ""))
    return keys, texts


def names(rows: list[dict[str, Any]], always: Iterable[str] = ()) -> list[str]:
    """A name for each row of axis values: its values that are not the most common ones, and those of ``always``."""
    values = {axis: Counter(row[axis] for row in rows) for axis in (rows[0] if rows else ())}
    said = {*always, *(axis for axis in _SAID if len(values.get(axis, ())) > 1)}
    usual = {axis: counts.most_common(1)[0][0] for axis, counts in values.items() if axis not in said}
    return [
        " · ".join(word(a, _told(a, v, usual.get(a))) for a, v in row.items() if a not in usual or v != usual[a])
        for row in rows
    ]


def _told(axis: str, value: Any, usual: Any) -> Any:
    """Of a launcher's name, which may be long, the parts beyond those of the usual one, if it has all of these."""
    own, common = str(value).split("-"), str(usual).split("-")
    beyond = axis == "launcher" and set(common) < set(own)
    return "-".join(part for part in own if part not in common) if beyond else value


def word(axis: str, value: Any) -> str:
    """``sigkill-all``, ``loader workers``: a value of an axis in a title."""
    return str(value) if axis in ("backend", "fault") else f"{axis.removeprefix('trainer.').replace('_', ' ')} {value}"
