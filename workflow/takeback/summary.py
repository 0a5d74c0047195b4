"""What the terminal says at the end: one line if all came out as predicted, else each surprise."""

from __future__ import annotations

from typing import Any

import pandas as pd


def terminal_summary(verdicts: pd.DataFrame, experiment_name: str) -> tuple[str, int]:
    """Text for the terminal and the exit status: 0 if nothing is a surprise, else 1.

    Args:
        verdicts: table as written to ``verdicts.parquet``, one row a cell.
        experiment_name: name of the experiment's file.
    """
    ran = verdicts[verdicts["verdict"] != "not-run"]
    surprises = ran[ran["surprise"].astype(bool)]
    kinds = ", ".join(f"{count} {verdict}" for verdict, count in ran["verdict"].value_counts().items())
    line = f"{experiment_name}: {len(ran) - len(surprises)} of {len(ran)} cells as predicted"
    line += f" ({kinds})" if kinds else ""
    idle = verdicts[verdicts["verdict"] == "not-run"]
    if len(idle):
        counts = idle["diagnosis"].value_counts(sort=False)
        reasons = [reason + (f" ({count})" if len(counts) > 1 else "") for reason, count in counts.items()]
        line += f"; {len(idle)} not run: {', '.join(reasons)}"
    line += f"; see results/{experiment_name}/report.html"
    if not len(surprises):
        return line, 0
    blocks = [_surprise(experiment_name, row) for row in surprises.to_dict("records")]
    # The count comes last: it is what stays on the screen.
    return "\n\n".join([*blocks, line]), 1


def log_of(leg: str) -> str:
    """Where the log of a leg lies, seen from the working directory."""
    return f"results/logs/leg/{leg}.log"


def command_of(experiment: str, resumed: str) -> str:
    """The one command that resumes a cell's run again, judges it anew and rewrites the page."""
    return f"snakemake --cores 2 {experiment} --forcerun results/runs/{resumed}/events.parquet"


def _surprise(experiment: str, row: dict[str, Any]) -> str:
    lines = {
        "cell": row["cell"],
        "expected": _answer(row["expected"], row["expected_first_step"], row["expected_first_state"])
        + _sees(expected := row.get("expected_sees"), expected),
        "got": _answer(row["verdict"], row["first_step"], row["first_state"])
        + _sees(expected, row.get("survivors_saw")),
        "why": row["diagnosis"],
        "logs": f"{log_of(row['killed'])} {log_of(row['resumed'])}",
        "reproduce": command_of(experiment, row["resumed"]),
    }
    return "\n".join(f"{name + ':':<11}{text}" for name, text in lines.items())


def _sees(expected: Any, what: Any) -> str:
    """What survivors see, where something was predicted of it."""
    return "" if pd.isna(expected) else f", survivors see {what!r}"


def _answer(verdict: str, step: Any, state: Any) -> str:
    """``different from step 17 on, rng.torch first``, as far as it is known."""
    words = verdict
    if not pd.isna(step):
        words += f" from step {int(step)} on"
    if not pd.isna(state):
        words += f", {state} first"
    return words
