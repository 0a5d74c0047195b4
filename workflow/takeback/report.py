"""The page of an experiment: one file that needs nothing else, made from what lies in its results folder."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from takeback import __version__
from takeback.answer import answer
from takeback.evidence import EvidenceError, read_json, read_table
from takeback.figures import further, style
from takeback.sheet import rest, sheet
from takeback.summary import command_of, log_of

TEMPLATES = Path(__file__).parents[1] / "report"
MEANING = {
    "equal": "Every loss, state and sample that was compared has the bits of the uninterrupted run. All cells lists "
    "how many were compared; what was not compared is not covered.",
    "different": "Something differs; the first step and the first state by name are given.",
    "refused": "The run stopped with a clear error instead of going on wrongly.",
    "hung": "The deadline passed without an end.",
    "crashed": "The run ended with an error that nobody asked for.",
    "invalid": "No statement can be made: the fault did not strike, or the resume did not resume what it should have.",
    "unrepeatable": "Two uninterrupted runs differ already, so a resumed one can't be judged.",
    "not-run": "It did not run; the reason is given.",
}


def write(experiment: Any, folder: Path) -> Path:
    """Write ``folder/report.html``.

    Args:
        experiment: takeback.experiment.Experiment.
        folder: results/<experiment>, with verdicts.parquet, findings.tsv, provenance.json and figures/*.svg.

    Raises:
        EvidenceError: a file is missing or broken, or the page can't be written.
    """
    verdicts = read_table(folder / "verdicts.parquet", "verdicts")
    try:
        findings = pd.read_csv(folder / "findings.tsv", sep="\t", keep_default_na=False)
        figures = {path.stem: Markup(style.inline(path)) for path in sorted((folder / "figures").glob("*.svg"))}
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{folder}: findings or figures can't be read: {error}; run snakemake again") from None
    overlays, absent = places(verdicts)
    rows, provenance = records(verdicts), read_json(folder / "provenance.json")
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    page = environment.get_template("page.html.j2").render(
        experiment=experiment,
        answer=answer(verdicts),
        findings=findings.to_dict("records"),
        heatmap=figures.get("verdicts"),
        overlays={name: figures[f"overlay-{name}"] for name in overlays if f"overlay-{name}" in figures},
        absent=absent,
        further=further_figures(experiment, verdicts, figures),
        controls=[row for row in rows if row["control"]],
        surprises=[
            {**row, "log": log_of(row["resumed"]), "command": command_of(experiment.name, row["resumed"])}
            for row in rows
            if row["surprise"]
        ],
        times=all_times(verdicts),
        groups=groups(rows),
        provenance=provenance,
        sheet=sheet(provenance),
        rest=rest(provenance),
        verdicts=style.VERDICTS,
        meaning=MEANING,
        css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        version=__version__,
        example=rows[0]["resumed"] if rows else "LEG",
    )
    out = folder / "report.html"
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{out}: cannot be written: {error.strerror}") from None
    return out


def further_figures(experiment: Any, verdicts: pd.DataFrame, drawn: dict[str, Markup]) -> list[dict[str, Any]]:
    """The figures that the experiment asks for, each with its title, its text, and the same as a table."""
    found = []
    for name in experiment.figures:
        module = further.get(name)
        heads, rows = module.table(experiment, verdicts)
        figure = drawn.get(f"further-{name}")
        found.append(
            {"name": name, "title": module.TITLE, "text": module.TEXT, "figure": figure, "heads": heads, "rows": rows}
        )
    return found


def breakable(name: str) -> Markup:
    """A dotted name; a long one may be broken after a dot or an underscore where a line is too short for it."""
    if len(name) < 20:
        return escape(name)
    return Markup(str(escape(name)).replace(".", ".<wbr>").replace("_", "_<wbr>"))


def places(verdicts: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Names (``gloo-w2``) of the overlays to show, and ``gloo at world 2`` where no cell of the matrix ran."""
    if not {"backend", "world"} <= set(verdicts):
        return [], []
    matrix = verdicts[verdicts.control.isna()]
    shown, absent = [], []
    for (backend, world), cells in matrix.groupby(["backend", "world"]):
        if (cells.verdict == "not-run").all():
            absent.append(f"{backend} at world {world}")
        else:
            shown.append(f"{backend}-w{world}")
    return shown, absent


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts, with None for whatever is missing and whole numbers as int."""
    return [
        {key: _plain(value) for key, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]  # fmt: skip


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def times(verdicts: pd.DataFrame, column: str, by: str) -> list[tuple[int, int, float, float, float]]:
    """(world, cells, minimum, median, maximum in seconds) of a time, one row a world of the axis ``by``."""
    if by not in verdicts or column not in verdicts:
        return []
    known = verdicts[verdicts[column].notna()]
    return [
        (int(world), len(part), part[column].min(), part[column].median(), part[column].max())
        for world, part in known.groupby(by)
    ]


def all_times(verdicts: pd.DataFrame) -> list[tuple[str, str, list[tuple[int, int, float, float, float]]]]:
    """(what, head of its first column, rows) of each table of times; compilation only where something compiles."""
    compiled = times(verdicts, "compile_s", "resume_world")
    return [
        ("From the fault to the first error on a surviving rank", "World", times(verdicts, "detect_s", "world")),
        (
            "From the launch of the resumed run to its first new step",
            "Resumed at",
            times(verdicts, "restart_s", "resume_world"),
        ),
        *([("Compilation, within the time to the first new step", "Resumed at", compiled)] if compiled else []),
    ]


def groups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells by backend and worlds, and the controls: name, counts of verdicts, surprises, rows."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        world, resume = row.get("world"), row.get("resume_world")
        name = "negative controls" if row["control"] else f"{row.get('backend') or ''} {world} → {resume or world}"
        found.setdefault(name.strip(), []).append(row)
    order = list(style.VERDICTS)
    return [
        {
            "name": name,
            "rows": part,
            "counts": sorted(Counter(row["verdict"] for row in part).items(), key=lambda item: order.index(item[0])),
            "surprises": sum(bool(row["surprise"]) for row in part),
        }
        for name, part in found.items()
    ]
