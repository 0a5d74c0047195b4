"""Records and tables: what is written is what is read, torn ends and broken files are said."""

import json
import math
import struct
import subprocess
import sys
import timeit

import pytest
from takeback import evidence, probe, records
from takeback.evidence import EvidenceError

STEP = {
    "kind": "step", "pid": 7, "mono": 1.5, "wall": 2.5, "step": 1, "epoch": 0, "micro_batches": 4,
    "loss_bits": 1065353216, "loss_dtype": "float32", "lr": 0.1, "grad_norm": None, "grad_norm_bits": None,
    "samples": [3, 1],
}  # fmt: skip


def lines(*records_):
    return "".join(json.dumps(record) + "\n" for record in records_)


def test_records_become_the_four_tables(tmp_path):
    digest = {
        "kind": "digest",
        "pid": 7,
        "mono": 1.6,
        "wall": 2.6,
        "moment": "step",
        "step": 1,
        "entries": [["a.b", "float32", "2x2", "00"]],
    }
    (tmp_path / "attempt0-rank1.jsonl").write_text(lines(STEP, digest))
    (tmp_path / "supervisor.jsonl").write_text(
        lines({"kind": "launched", "pid": 1, "mono": 1.0, "wall": 2.0, "attempt": 0, "of_rank": 1})
    )
    rows = records.tables(tmp_path)
    assert rows["losses"][0]["loss"] == 1.0
    assert (rows["losses"][0]["rank"], rows["losses"][0]["step"]) == (1, 1)
    assert rows["ledger"][0]["sample_ids"] == [3, 1]
    assert rows["digests"] == {
        "attempt": [0], "rank": [1], "moment": ["step"], "step": [1], "order": [0],
        "name": ["a.b"], "dtype": ["float32"], "shape": ["2x2"], "digest": ["00"],
    }  # fmt: skip
    assert [(row["kind"], row["rank"]) for row in rows["events"]] == [("launched", -1), ("first_step", 1)]


def test_a_torn_last_record_is_dropped_and_said(tmp_path):
    (tmp_path / "attempt0-rank0.jsonl").write_text(lines(STEP) + '{"kind": "step", "st')
    rows = records.tables(tmp_path)
    assert len(rows["losses"]) == 1
    assert "torn_record" in [row["kind"] for row in rows["events"]]


def test_a_record_that_a_full_disk_has_cut_does_not_take_the_next_one_with_it(tmp_path):
    (tmp_path / "attempt0-rank0.jsonl").write_text(lines(STEP) + '{"kind": "st\n' + lines({**STEP, "step": 2}))
    rows = records.tables(tmp_path)
    assert [row["step"] for row in rows["losses"]] == [1, 2]
    assert "torn_record" in [row["kind"] for row in rows["events"]]


@pytest.mark.parametrize("table", evidence.TABLES)
def test_the_writer_keeps_to_the_schema(tmp_path, table):
    rows = [{name: example(column) for name, column in evidence.columns(table).items()}]
    evidence.write_table(tmp_path / "t.parquet", table, rows, {"takeback.leg": "x"})
    found = evidence.read_table(tmp_path / "t.parquet", table)
    assert list(found.columns) == list(evidence.columns(table))
    assert len(found) == 1
    evidence.write_table(tmp_path / "c.parquet", table, {name: [value] for name, value in rows[0].items()})
    assert evidence.read_table(tmp_path / "c.parquet", table).equals(found)


def example(column):
    if "enum" in column:
        return column["enum"][0]
    kinds = column["type"] if isinstance(column["type"], list) else [column["type"]]
    return {"integer": 1, "number": 0.5, "string": "s", "array": [1, 2], "boolean": True}[kinds[0]]


def test_the_records_of_the_probe_fit_the_documented_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("TAKEBACK_RECORDS", str(tmp_path))
    monkeypatch.setenv("RANK", "2")
    probe.connect()
    try:
        probe.describe(seed=1)
        probe.group(4, "gloo")
        probe.restored(0, epoch=0, state={"a": {"b": 1.5}, "c": [1, 2]})
        probe.step(1, 0.25, samples=[4, 5], grad_norm=1.0)
        probe.saved(1)
        probe.finished(1)
        probe.refused("no")
    finally:
        monkeypatch.delenv("TAKEBACK_RECORDS")
        probe.connect()
    rows = records.tables(tmp_path)
    for table in evidence.TABLES:
        assert rows[table]
        evidence.write_table(tmp_path / f"{table}.parquet", table, rows[table])
        told = [rows[table]] if table == "digests" else rows[table]
        assert all(set(row) == set(evidence.columns(table)) for row in told)
    assert {row["kind"] for row in rows["events"]} <= set(evidence.columns("events")["kind"]["enum"])
    assert rows["digests"]["name"] == ["a.b", "c.0", "c.1"]


def test_outside_the_suite_the_probe_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("TAKEBACK_RECORDS", raising=False)
    monkeypatch.chdir(tmp_path)
    probe.connect()
    probe.restored(0, state={"a": 1})
    probe.step(1, 1.0, samples=[1])
    probe.saved(1)
    probe.point("anything", 1)
    assert not probe.active()
    assert list(tmp_path.iterdir()) == []


def test_outside_the_suite_a_call_costs_what_an_empty_call_costs(monkeypatch):
    monkeypatch.delenv("TAKEBACK_RECORDS", raising=False)
    probe.connect()

    def empty(step, loss, *, samples=(), state=None):
        return None

    def cost(function):
        return min(timeit.repeat(lambda: function(1, 0.5, samples=ids), number=2000, repeat=7))

    ids = list(range(1000))
    assert cost(probe.step) < 4 * cost(empty)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 1e-310])
def test_the_bits_of_a_loss_are_those_of_its_float(value):
    bits, dtype = probe.float_bits(value)
    assert dtype == "float64"
    assert struct.pack("q", bits) == struct.pack("d", value)


def break_file(kind, path):
    content = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "other columns":
        evidence.write_table(path, "events", [])


@pytest.mark.parametrize("kind", ["missing", "empty", "truncated", "other columns"])
def test_broken_evidence_is_one_line_that_names_the_file(tmp_path, kind):
    path = tmp_path / "losses.parquet"
    evidence.write_table(path, "losses", [])
    break_file(kind, path)
    with pytest.raises(EvidenceError) as caught:
        evidence.read_table(path, "losses")
    assert "\n" not in str(caught.value)
    assert "losses.parquet" in str(caught.value)
    assert "run snakemake again" in str(caught.value)


def test_a_table_that_can_not_be_written_leaves_the_old_one_whole(tmp_path):
    path = tmp_path / "losses.parquet"
    evidence.write_table(path, "losses", [])
    before = path.read_bytes()
    with pytest.raises(EvidenceError):
        evidence.write_table(path, "losses", [{"step": "no number"}])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["losses.parquet"]


NO_ROOM = """
import resource, sys
from pathlib import Path
from takeback import evidence
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
row = dict.fromkeys(evidence.columns("losses"), 1)
rows = [{**row, "loss_dtype": str(n), "samples": str(n)} for n in range(9999)]
evidence.write_table(Path(sys.argv[1]), "losses", rows)
"""


def test_a_table_that_does_not_fit_leaves_the_old_one_whole(tmp_path):
    """The kernel refuses to let the file grow in the middle of the write, as a full disk does."""
    path = tmp_path / "losses.parquet"
    evidence.write_table(path, "losses", [])
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", NO_ROOM, path], capture_output=True, text=True, check=False)
    assert "EvidenceError" in done.stderr
    assert "File too large" in done.stderr
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["losses.parquet"]


def test_a_record_is_of_the_group_that_the_supervisor_names_for_its_process(tmp_path):
    """Two groups may have one count of restarts: when a node comes nobody has failed."""
    for pid in (7, 8):
        (tmp_path / f"attempt0-rank0-pid{pid}.jsonl").write_text(lines({**STEP, "pid": pid}))
    launched = [
        {"kind": "launched", "pid": 1, "mono": 1.0 + n, "wall": 2.0, "attempt": n, "of_rank": 0, "of_pid": pid}
        for n, pid in enumerate((7, 8))
    ]
    fired = {"kind": "fault_fired", "pid": 1, "mono": 1.5, "wall": 2.0, "attempt": None}
    (tmp_path / "supervisor.jsonl").write_text(lines(fired, *launched, {**fired, "mono": 2.5}))
    rows = records.tables(tmp_path)
    assert [row["attempt"] for row in rows["losses"]] == [0, 1]
    assert [row["attempt"] for row in rows["events"] if row["kind"] == "fault_fired"] == [0, 1]
