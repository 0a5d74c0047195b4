"""Heat map of verdicts: rows world → resume world, columns kill step, a panel for each other varying axis.

A field that holds several cells shows them as shares, so that ten cells and ten thousand read alike.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from takeback.figures import fields, style

ROOM = 4  # rows beside which their label has room; the page says it too
WIDEST, CONTROLS, LEGEND, LABELS = 10.4, 5.9, 0.4, 0.75  # inches: all panels, controls, legend, labels of rows
LETTER, LINE = 0.095, 0.17  # inches of a title
_NAMES = list(style.VERDICTS)


def heatmap(experiment: Any, verdicts: pd.DataFrame, out: Path) -> Path:
    """Write the heat map of ``verdicts`` (workflow/schemas/verdicts.schema.yaml) to ``out`` as SVG.

    Args:
        experiment: takeback.experiment.Experiment; its cells name the axes.
        verdicts: one row a cell; controls (``control`` not null) get a panel of their own.
    """
    style.use()
    matrix, controls = verdicts[verdicts.control.isna()], verdicts[verdicts.control.notna()]
    axes = dict.fromkeys(axis for cell in experiment.cells for axis in cell.axes)
    panels = list(fields.place(matrix, axes).groupby("panel", sort=False)) if len(matrix) else []
    panels = [(textwrap.fill(name, int(WIDEST / LETTER) - 4), cells) for name, cells in panels]
    figure, axes_of_panels, axis_of_controls = _layout(panels, controls)
    for (name, cells), axis in zip(panels, axes_of_panels, strict=True):
        _panel(axis, cells, name, first=axis is axes_of_panels[0])
    if axis_of_controls:
        _controls(axis_of_controls, controls)
    _legend(figure, verdicts)
    return style.save(figure, out, _spoken(experiment, verdicts))


def _layout(panels: list[tuple[str, pd.DataFrame]], controls: pd.DataFrame) -> tuple[Any, list[Any], Any]:
    """A figure, its axes (one a panel) and one for the controls: at the right if it fits, else below.

    Panels stand on shelves from left to right; a low one stands below its neighbour where there is room.
    """
    boxes: list[tuple[float, float, float, float]] = []  # left, top, width, height of the fields, in inches
    left = right = shelf = below = width = height = 0.0
    for name, cells in panels:
        columns = cells.column.nunique()
        inner = columns * (0.62 if columns <= 6 else 0.44), cells.row.nunique() * 0.36
        under = 0.95 + 0.13 * cells.column.str.contains(".", regex=False).any()  # a line more: see _panel
        lines = name.split("\n")
        above = 0.25 + LINE * (len(lines) - 1)
        wide, high = max(LABELS + inner[0], max(map(len, lines)) * LETTER) + 0.25, inner[1] + under + above - 0.25
        if not boxes or below + high > height + 0.01:  # no room in this column
            left, below = right, shelf
        if left and left + wide > WIDEST:
            left, right, shelf, below = 0.0, 0.0, height, height
        boxes.append((left + LABELS, below + above, *inner))
        below += high
        right, height = max(right, left + wide), max(height, below)
        width = max(width, right)
    needs = (controls.control.nunique() + 1) * 0.29 if len(controls) else 0
    beside = bool(panels) and width + 0.3 + CONTROLS <= WIDEST
    corner = (width + 0.3, 0) if beside else (0, height)
    size = max(width, corner[0] + CONTROLS if needs else 0, 3.5), LEGEND + max(height, corner[1] + needs)
    figure = plt.figure(figsize=size)

    def place(x: float, y: float, w: float, h: float) -> Any:
        return figure.add_axes((x / size[0], 1 - (LEGEND + y + h) / size[1], w / size[0], h / size[1]))

    return figure, [place(*box) for box in boxes], place(*corner, CONTROLS, needs) if needs else None


def _order(cells: pd.DataFrame, what: str) -> list[str]:
    return list(cells.sort_values(f"{what}_key", kind="stable")[what].drop_duplicates())


def _panel(axis: Any, cells: pd.DataFrame, name: str, first: bool) -> None:
    rows, columns = _order(cells, "row"), _order(cells, "column")
    parts = dict(list(cells.groupby(["row", "column"])))
    codes = pd.DataFrame(index=rows, columns=columns, dtype=float)
    signs = pd.DataFrame("", index=rows, columns=columns)
    for key, part in parts.items():
        counts = Counter(part.verdict)
        if len(counts) == 1:
            (verdict, count), = counts.items()  # fmt: skip
            codes.loc[key], signs.loc[key] = _NAMES.index(verdict), _sign(verdict, count)
    palette = ListedColormap([colour for colour, _ in style.VERDICTS.values()])
    # Not seaborn's: it draws the whole figure once a panel, to see whether labels touch.
    axis.pcolormesh(codes.to_numpy(), cmap=palette, vmin=-0.5, vmax=len(_NAMES) - 0.5)
    axis.set(xticks=[n + 0.5 for n in range(len(columns))], yticks=[n + 0.5 for n in range(len(rows))])
    axis.set(xticklabels=[name.replace(".", ".\n") for name in columns], yticklabels=rows, ylim=(len(rows), 0))
    for (row, column), part in parts.items():
        x, y = columns.index(column), rows.index(row)
        if signs.loc[row, column]:
            _text(axis, x + 0.5, y + 0.5, signs.loc[row, column], part.verdict.iloc[0], len(part))
        else:
            _shares(axis, x, y, Counter(part.verdict))
        if part.surprise.any():
            axis.add_patch(Rectangle((x + 0.05, y + 0.05), 0.9, 0.9, fill=False, lw=2.6, ec=style.INK, zorder=4))
            axis.add_patch(Rectangle((x + 0.05, y + 0.05), 0.9, 0.9, fill=False, lw=1, ec=style.PAPER, zorder=5))
    for x in range(len(columns) + 1):
        axis.axvline(x, color=style.PAPER, lw=1.6, zorder=3)
    for y in range(len(rows) + 1):
        axis.axhline(y, color=style.PAPER, lw=1.6, zorder=3)
    axis.set(xlabel="killed at step", ylabel="world → resumed at" if first and len(rows) >= ROOM else "")
    axis.set_title(name, x=-0.62 / (axis.get_position().width * axis.figure.get_figwidth()))
    axis.tick_params(length=0, rotation=0)


def _sign(verdict: str, count: int) -> str:
    return style.VERDICTS[verdict][1] + (f" {count}" if count > 1 else "")


def _text(axis: Any, x: float, y: float, text: str, verdict: str, count: int) -> None:
    colour = style.on(style.VERDICTS[verdict][0])
    size = 12 if count == 1 else 9 if count < 100 else 7.5
    axis.text(x, y, text, color=colour, ha="center", va="center_baseline", fontsize=size, fontweight="bold")


def _shares(axis: Any, x: float, y: float, counts: Counter) -> None:
    """Stacked bands with their counts, as high as their shares but never too low for one lost cell to be seen."""
    least, total = min(0.42, 1 / len(counts)), sum(counts.values())
    low = {verdict for verdict, count in counts.items() if count / total < least}
    rest = (1 - least * len(low)) / sum(count for verdict, count in counts.items() if verdict not in low)
    top = y
    for verdict in sorted(counts, key=_NAMES.index):
        height = least if verdict in low else counts[verdict] * rest
        axis.add_patch(Rectangle((x, top), 1, height, color=style.VERDICTS[verdict][0], lw=0, zorder=2))
        colour = style.on(style.VERDICTS[verdict][0])
        text = f"{style.VERDICTS[verdict][1]} {counts[verdict]}"
        axis.text(x + 0.5, top + height / 2, text, color=colour, ha="center", va="center_baseline", fontsize=7,
                  fontweight="bold", zorder=6)  # fmt: skip
        top += height


def _controls(axis: Any, controls: pd.DataFrame) -> None:
    """Names, expected and got; several cells of one control and outcome stand in one line as a count."""
    groups = list(controls.groupby("control", sort=False))
    axis.set(xlim=(0, CONTROLS), ylim=(len(groups), -1))
    axis.axis("off")
    for x, text in ((0, "negative controls"), (3.0, "expected"), (4.4, "got")):
        axis.text(x, -0.35, text, fontweight="bold", va="center", fontsize=9.5 if x == 0 else 8.5)
    for y, (name, cells) in enumerate(groups):
        axis.text(0, y + 0.5, name, va="center")
        for x, column in ((3.0, "expected"), (4.4, "verdict")):
            counts = Counter(cells[column])
            worst = max(counts, key=lambda verdict: (verdict != "equal", counts[verdict]))
            colour, sign = style.VERDICTS[worst]
            surprise = column == "verdict" and cells.surprise.any()
            axis.add_patch(Rectangle((x, y + 0.12), 0.26, 0.76, fc=colour, lw=1.8 if surprise else 0,
                                     ec=style.SURPRISE if surprise else colour))  # fmt: skip
            axis.text(x + 0.13, y + 0.5, sign, color=style.on(colour), ha="center", va="center_baseline",
                      fontsize=8.5, fontweight="bold")  # fmt: skip
            label = worst if len(counts) == 1 else " + ".join(f"{n} {v}" for v, n in counts.most_common())
            axis.text(x + 0.36, y + 0.5, label + (" (surprise)" if surprise else ""), va="center")


def _legend(figure: Any, verdicts: pd.DataFrame) -> None:
    there = [name for name in _NAMES if (verdicts.verdict == name).any()]
    handles = [Patch(facecolor=style.VERDICTS[n][0], label=f"{style.VERDICTS[n][1]}  {n}") for n in there]
    if verdicts.surprise.any():
        handles.append(Patch(facecolor="none", edgecolor=style.INK, linewidth=2, label="not as predicted"))
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 1), ncols=len(handles), borderpad=0,
                  handlelength=1.1, handleheight=1.1, columnspacing=1.4, borderaxespad=0)  # fmt: skip


def _spoken(experiment: Any, verdicts: pd.DataFrame) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in Counter(verdicts.verdict).most_common())
    return f"Verdicts of {experiment.name}: {counts or 'no cells'}; {int(verdicts.surprise.sum())} surprises"
