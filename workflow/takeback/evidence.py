"""The evidence of a leg: four parquet tables and its provenance, one schema for all backends.

Those who break runs write it, those who judge read it, and this is all they share. The columns
are described in ``workflow/schemas/*.schema.yaml``, from which the arrow schemas are made, so that
the description and the files can't drift apart.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from takeback.errors import EvidenceError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SCHEMAS = Path(__file__).parents[1] / "schemas"
TABLES = ("losses", "ledger", "digests", "events")
#: What judges need of a table, if not all, and which of these columns hold few words, to be read as numbers.
_JUDGED = {"losses": ["attempt", "rank", "step", "loss_bits", "loss_dtype", "lr", "grad_norm_bits"]}
_FEW = {"losses": ["loss_dtype"], "digests": ["moment", "name", "dtype", "shape"]}


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one leg left behind; the tables have the columns of their schema, in the order of the records.

    They are arrow tables as :func:`read` finds them, for the judges, or pandas frames (:func:`frames`), for figures.
    """

    leg_id: str
    spec: dict[str, Any]
    losses: pa.Table | pd.DataFrame
    ledger: pa.Table | pd.DataFrame
    digests: pa.Table | pd.DataFrame
    events: pa.Table | pd.DataFrame
    provenance: dict[str, Any]

    def table(self, name: str) -> pa.Table:
        """One of the four as an arrow table of its schema."""
        found = getattr(self, name)
        return found if hasattr(found, "schema") else _of_frame(found, name)


@cache
def columns(table: str) -> dict[str, dict[str, Any]]:
    """Column → its JSON Schema."""
    return yaml.safe_load((SCHEMAS / f"{table}.schema.yaml").read_text(encoding="utf-8"))["properties"]


@cache
def arrow_schema(table: str) -> pa.Schema:
    import pyarrow as pa

    types = {"bool": pa.bool_(), "list<int64>": pa.list_(pa.int64())}
    fields = [
        (name, types.get(c["arrow"]) or getattr(pa, c["arrow"].replace("double", "float64"))())
        for name, c in columns(table).items()
    ]
    return pa.schema(fields)


def write_table(
    path: Path,
    table: str,
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]] | pd.DataFrame,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write rows, or columns by name, as parquet, complete or not at all (temporary file, fsync, rename).

    Columns beyond the schema are kept where it allows them (``verdicts``: one a matrix axis).

    Raises:
        EvidenceError: the disk is full, the folder can't be written, a row does not fit the schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(table)
    try:
        if isinstance(rows, Sequence):  # a run has no pandas to import
            known = pa.Table.from_pylist(list(rows), schema=schema)
        elif isinstance(rows, Mapping):
            known = pa.Table.from_pydict(rows, schema=schema)
        else:
            known = _of_frame(rows, table)
            for name in rows.columns.difference(schema.names, sort=False):
                known = known.append_column(name, pa.array(rows[name]))
        known = known.replace_schema_metadata({**(known.schema.metadata or {}), **(metadata or {})})
        temporary = path.with_name(f".{path.name}.partial")
        pq.write_table(known, temporary)
        _sync(temporary)
        temporary.replace(path)
    except (OSError, OverflowError, pa.ArrowException) as error:
        path.with_name(f".{path.name}.partial").unlink(missing_ok=True)
        raise EvidenceError(f"{path}: cannot be written: {_line(error)}") from error


def _of_frame(frame: pd.DataFrame, table: str) -> pa.Table:
    import pyarrow as pa

    schema = arrow_schema(table)
    return pa.Table.from_pandas(frame.reindex(columns=schema.names), schema=schema, preserve_index=False)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_table(path: Path, table: str) -> pd.DataFrame:
    """Read one table of evidence.

    Raises:
        EvidenceError: missing, truncated, not parquet, or with other columns than the schema says.
    """
    return _read(path, table).to_pandas()


def read_rows(path: Path, table: str) -> list[dict[str, Any]]:
    """As :func:`read_table`, for a caller that does without pandas."""
    return _read(path, table).to_pylist()


def _read(path: Path, table: str, columns: list[str] | None = None, few: Sequence[str] | None = None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    cure = "remove its folder and run snakemake again"
    try:
        # The whole file at once and one thread: these tables are small, and opening them is what costs.
        with pq.ParquetFile(pa.BufferReader(path.read_bytes()), pre_buffer=False, read_dictionary=few) as file:
            found = file.read(columns, use_threads=False)
    except FileNotFoundError:
        raise EvidenceError(f"{path}: is missing; {cure}") from None
    except (OSError, pa.ArrowException) as error:
        raise EvidenceError(f"{path}: is no whole parquet file ({_line(error)}); {cure}") from None
    missing = set(columns or arrow_schema(table).names) - set(found.column_names)
    if missing:
        raise EvidenceError(f"{path}: has no column {', '.join(sorted(missing))}; {cure}")
    return found


def read(runs: Path, leg_id: str) -> Evidence:
    """The evidence of one leg as arrow tables, with the columns that judges look at.

    Raises:
        EvidenceError: as :func:`read_table`, or a JSON file is missing or broken.
    """
    folder = runs / leg_id
    found = {t: _read(folder / f"{t}.parquet", t, _JUDGED.get(t), _FEW.get(t)) for t in TABLES}
    return Evidence(leg_id, read_json(folder / "leg.json"), provenance=read_json(folder / "provenance.json"), **found)


def frames(runs: Path, leg_id: str, tables: Sequence[str] = TABLES) -> Evidence:
    """As :func:`read`, with pandas frames; those that are not asked for are left empty, which saves the most."""
    folder = runs / leg_id
    found = {
        table: read_table(folder / f"{table}.parquet", table) if table in tables else empty(table) for table in TABLES
    }
    return Evidence(leg_id, read_json(folder / "leg.json"), provenance=read_json(folder / "provenance.json"), **found)


def empty(table: str) -> pd.DataFrame:
    """A table with its columns and no row."""
    return arrow_schema(table).empty_table().to_pandas()


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(
            f"{path}: cannot be read: {_line(error)}; remove its folder and run snakemake again"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON, complete or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=False) + "\n", encoding="utf-8")
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise EvidenceError(f"{path}: cannot be written: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error)).split())
