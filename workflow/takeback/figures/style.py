"""The look of every figure: one fixed colour a verdict and a role, and SVG that suits light and dark.

The same data give the same bytes of SVG on one version of matplotlib. Text stays text, what is drawn in
:data:`INK` becomes ``currentColor``, and what is drawn in :data:`PAPER` becomes the background: on the page a
figure takes the ink of the page, and as a file of its own it brings both for either colour scheme.

Colours: Okabe and Ito, "Color Universal Design", https://jfly.uni-koeln.de/color/ ; they stay apart in the
common kinds of colour blindness. A sign or a marker says the same without any colour.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")  # no window system is asked for, here or in what a plot imports later

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

INK = "#010203"  # colours that nothing else uses: save() turns them into currentColor and --paper
PAPER = "#fdfefc"
FAINT = "#8b93a3"  # grid and frames; readable on white and on near-black

VERDICTS = {  # verdict: (colour, sign); the order is that of legends
    "equal": ("#009e73", "="),
    "different": ("#d55e00", "≠"),
    "refused": ("#56b4e9", "R"),
    "hung": ("#cc79a7", "H"),
    "crashed": ("#882255", "C"),
    "invalid": ("#f0c000", "!"),
    "unrepeatable": ("#0072b2", "~"),
    "not-run": ("#a4abb8", "\u2013"),
}
SURPRISE = "#e5172f"
ROLES = {"reference": "#8b93a3", "killed": "#d55e00", "resumed": "#0a84d0"}
MARKERS = "osD^vPX*"  # one a resume world

_STANDALONE = (
    '<style class="standalone">svg{color:#1b1f27;background:#fff;--paper:#fff}'
    "@media (prefers-color-scheme:dark){svg{color:#e7e9ee;background:#14161b;--paper:#14161b}}</style>"
)


def use() -> None:
    """Set the seaborn theme. Call it first in every figure: it holds for the process."""
    ink = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), INK
    )
    sns.set_theme(
        context="paper",
        style="ticks",
        font="DejaVu Sans",  # comes with matplotlib, and is wide: what replaces it on the page fits
        rc={
            **ink,
            "axes.edgecolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT, "axes.grid": False,
            "grid.color": FAINT, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
            "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5, "legend.fontsize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left",
            "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
            "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "takeback",
        },
    )  # fmt: skip


def on(colour: str) -> str:
    """Black or white, whichever reads better on ``colour`` (#rrggbb); WCAG 2.2, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"


def save(figure: Figure, path: Path, title: str, box: Bbox | None = None) -> Path:
    """Write ``figure`` as SVG with ``title`` as its accessible name, and close it.

    ``box`` is what it covers, in inches; None finds that out, at the price of drawing it twice.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        path, format="svg", bbox_inches=box or "tight", pad_inches=0.08, metadata={"Date": None, "Title": title}
    )
    plt.close(figure)
    text = path.read_text(encoding="utf-8").replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    start = text.index("<svg")
    head = text.index(">", start) + 1
    name = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    opening = f'{text[start : head - 1]} role="img" aria-label="{name}">'
    path.write_text(text[:start] + opening + _STANDALONE + text[head:], encoding="utf-8")
    return path


def inline(path: Path) -> str:
    """The SVG of ``path`` for use inside a page: no prologue, no colours of its own, ids that are unique."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :].replace(_STANDALONE, "")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for before in (' id="', "url(#", 'href="#'):
        text = text.replace(before, f"{before}{path.stem}-")
    return text.replace("xlink:href", "href")
