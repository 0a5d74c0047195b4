"""The answer of an experiment in one sentence, made from its verdicts and from nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from takeback import clock


@dataclass(frozen=True)
class Answer:
    """What a stranger reads first.

    Attributes:
        tone: ``good``, ``bad`` or ``none`` (nothing could run).
        word: ``Yes.``, ``No.``, ``As predicted.`` or ``Not run.``
        sentence: the answer.
        more: further short sentences: controls, cells that did not run.
        numbers: (number, of how many, label) of the tiles; of how many is None where that has no meaning.
    """

    tone: str
    word: str
    sentence: str
    more: tuple[str, ...]
    numbers: tuple[tuple[int, int | None, str], ...]


def answer(verdicts: pd.DataFrame) -> Answer:
    """The answer that ``verdicts`` (workflow/schemas/verdicts.schema.yaml) give."""
    ran = verdicts[verdicts.verdict != "not-run"]
    matrix, controls = ran[ran.control.isna()], ran[ran.control.notna()]
    surprises, absent = ran[ran.surprise], verdicts[verdicts.verdict == "not-run"]
    equal = int((matrix.verdict == "equal").sum())
    partly = _not_compared(matrix[matrix.verdict == "equal"])
    more = [words] if (words := _from_scratch(matrix)) else []
    if len(controls):
        bad = int(controls.surprise.sum())
        many = len(controls) > 1
        names = f"{len(controls)} negative controls" if many else "negative control"
        planted = "(failures planted on purpose)" if many else "(a failure planted on purpose)"
        good = f"{'all' if many else 'the'} {names} {planted} {'were' if many else 'was'} caught"
        more.append(_sentence(good if not bad else f"{bad} of {names} {planted} came out otherwise"))
    if len(absent):
        more.append(f"{_count(len(absent), 'cell')} did not run: {_reasons(absent)}.")
    caught = len(controls) - int(controls.surprise.sum())
    numbers = (
        (equal, len(matrix), "cells equal, bit for bit" + (" in what was compared" if partly else "")),
        *([(caught, len(controls), "negative controls caught")] if len(controls) else []),
        (len(surprises), None, "surprise" if len(surprises) == 1 else "surprises"),
        *([(len(absent), None, "not run")] if len(absent) else []),
    )
    if ran.empty:
        return Answer("none", "Not run.", f"Nothing could be run here: {_reasons(absent)}.", (), numbers)
    if len(surprises):
        first = surprises.iloc[0]
        more.insert(0, f"The first is {first.cell}: expected {first.expected}, got {first.verdict}; "
                    + _sentence(first.diagnosis, lower=True))  # fmt: skip
        sentence = f"{len(surprises)} of {_count(len(ran), 'cell')} came out other than predicted."
        more += [_sentence(partly)] if partly else []
        return Answer("bad", "No.", sentence, tuple(more), numbers)
    timely = " that there was time for" if (absent.diagnosis == clock.REASON).any() else ""
    if len(matrix) and equal == len(matrix):
        cells = (f"all {equal} cells" if equal > 1 else "the one cell") + timely
        return Answer("good", "Yes.", f"{_where(matrix)}, the run is the same run, bit for bit, in {cells}"
                      + (f"; {partly}." if partly else "."), tuple(more), numbers)  # fmt: skip
    parts = listing(f"{count} {name}" for name, count in Counter(matrix.verdict).most_common())
    sentence = "Every negative control (a failure planted on purpose) was caught."
    if len(matrix):
        sentence = f"{_where(matrix)}: {parts}, each as predicted" + (f"; {partly}." if partly else ".")
    return Answer("good", "As predicted.", sentence, tuple(more if len(matrix) else more[1:]), numbers)


def _not_compared(cells: pd.DataFrame) -> str:
    """What "bit for bit" does not cover: ``in 4 cells no states were compared, only losses and samples``."""
    kinds = {"losses": cells.steps_compared > 0, "states": cells.states_compared > 0,
             "samples": cells.samples_equal.notna()}  # fmt: skip
    rows = Counter(zip(*kinds.values(), strict=True))
    parts = []
    for there, count in rows.most_common():
        yes, no = ([k for k, told in zip(kinds, there, strict=True) if told == wish] for wish in (True, False))
        if no:
            parts.append(f"in {_count(count, 'cell')} no {' and no '.join(no)} were compared, only {listing(yes)}")
    return "; ".join(parts)


def _where(cells: pd.DataFrame) -> str:
    """``Killed at 4 points on 1, 2 or 4 ranks and resumed on 1, 2 or 4``, from the axes that are there."""
    kills = cells[[axis for axis in ("kill_step", "point") if axis in cells]].drop_duplicates()
    words = "Killed" + (f" at {_count(len(kills), 'point')}" if kills.shape[1] else "")
    if "world" in cells:
        worlds = sorted(set(cells.world.astype(int)))
        words += f" on {listing(worlds, 'or')} rank{'' if worlds == [1] else 's'}"
    if "resume_world" in cells:
        words += f" and resumed on {listing(sorted(set(cells.resume_world.dropna().astype(int))), 'or')}"
    moves = cells[["ran_on", "resumed_on"]].dropna().drop_duplicates()
    moves = [f"{before} → {after}" for before, after in moves.itertuples(index=False) if before != after]
    return words + (f", on other hardware ({'; '.join(moves)})" if moves else "")


def _from_scratch(cells: pd.DataFrame) -> str:
    """How many cells had no checkpoint to resume from, so that "resumed" is not said of them."""
    count = int((cells.restored_step == 0).sum())
    return f"{count} of these, killed before the first checkpoint, rightly started again." if count else ""


def _reasons(absent: pd.DataFrame) -> str:
    counts = Counter(absent.diagnosis.str.removeprefix("not run: ").str.rstrip("."))
    reasons = [reason + (f" ({count})" if len(counts) > 1 else "") for reason, count in counts.items()]
    return "; ".join(reasons[:2]) + (f"; and {len(reasons) - 2} more reasons" if len(reasons) > 2 else "")


def _sentence(text: str, lower: bool = False) -> str:
    first = text[:1].lower() if lower else text[:1].upper()
    return first + text[1:].rstrip(".") + "."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listing(values: Iterable[Any], last: str = "and") -> str:
    """``1, 2 and 4``."""
    words = [str(value) for value in values]
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
