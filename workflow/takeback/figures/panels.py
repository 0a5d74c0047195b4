"""The frame of an overlay: pairs of axes on common scales, and what they cover."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.transforms import Bbox

ACROSS = 4  # pairs of one row


def grid(count: int) -> tuple[Any, list[tuple[Any, Any]]]:
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


def box(figure: Any, pairs: list[tuple[Any, Any]], heads: list[Any]) -> Bbox:
    """What the figure covers, in inches, from what stands at its edges: a third of the time of a tight box of all."""
    edges = [*(axis for pair in pairs[::ACROSS] for axis in pair), pairs[:ACROSS][-1][1]]
    words = [*figure.texts, *figure.legends, *heads]
    boxes = [axis.get_tightbbox() for axis in edges] + [word.get_window_extent() for word in words]
    return Bbox.union([*boxes, figure.bbox]).transformed(figure.dpi_scale_trans.inverted()).padded(0.08)


def ulp_axis(axis: Any, largest: int) -> None:
    """Logarithmic above 1 and linear below, so that 0 has a place of its own."""
    top = max(1, int(np.ceil(np.log10(max(largest, 1) + 1))))
    powers = [p for p in range(0, top + 1, -(-top // 3)) if p or top < 3]
    axis.set_yscale("symlog", linthresh=1, linscale=0.8)
    axis.set_ylim(-0.5, 10.0**top * 1.5)
    axis.set_yticks([0, *(10.0**p for p in powers)], ["0", *(f"{10**p}" if p < 4 else f"$10^{{{p}}}$" for p in powers)])
    axis.minorticks_off()
    axis.xaxis.get_major_locator().set_params(integer=True)
