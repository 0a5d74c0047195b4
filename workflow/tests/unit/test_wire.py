"""What a host sends of its records and output arrives byte for byte, in order, and nowhere else."""

import json
import os

import pytest
from takeback.launchers import wire

OWN = "host-1.jsonl"


@pytest.fixture
def ends(tmp_path):
    """Folders of a host and of its supervisor, and what sends from one to the other."""
    for side in ("there", "here"):
        for name in ("records", "stdout"):
            (tmp_path / side / name).mkdir(parents=True)
    (tmp_path / "there/records" / OWN).touch()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield tmp_path / "there", tmp_path / "here", wire.Sender(tmp_path / "there", OWN, writing), wire.Lines(reading)
    os.close(reading)
    os.close(writing)


def taken(lines, here):
    """Names of the files whose pieces have come."""
    names = []
    while True:
        try:
            messages = lines.read()
        except BlockingIOError:
            return names
        names += [wire.received(message, here)[0] for message in messages]


def test_output_that_is_no_text_arrives_as_it_was_written(ends):
    there, here, sender, lines = ends
    first, second = bytes(range(256)) + "é".encode()[:1], "é".encode()[1:] + b"\n\0\xff"
    for part in (first, second):
        with (there / "stdout/rank-0.txt").open("ab") as file:
            file.write(part)
        sender.send_new()
        assert taken(lines, here) == ["stdout/rank-0.txt"]
    assert (here / "stdout/rank-0.txt").read_bytes() == first + second


def test_a_record_of_the_host_comes_after_those_to_which_it_answers(ends):
    there, here, sender, lines = ends
    sender.send_new()
    (there / "records/attempt0-rank1.jsonl").write_text('{"kind": "held"}\n')
    (there / "records" / OWN).write_text('{"kind": "fault_due"}\n')
    sender.send_new()
    assert taken(lines, here) == ["records/attempt0-rank1.jsonl", f"records/{OWN}"]


@pytest.mark.parametrize("name", ["../leg.json", "records/../leg.json", "/nowhere/passwd", "records/", "checkpoints/x"])
def test_a_host_writes_no_file_but_its_records_and_output(tmp_path, name):
    with pytest.raises(ValueError, match="a host sent a file"):
        wire.received({"file": name, "text": "x"}, tmp_path)


def test_messages_that_come_in_pieces_are_put_together(ends):
    _, _, _, lines = ends
    assert lines.whole(b'{"a": 1}\n{"b"') == [{"a": 1}]
    assert lines.whole(b": 2") == []
    assert lines.whole(b'}\n{"c": 3}\n') == [{"b": 2}, {"c": 3}]


def test_times_of_another_clock_are_moved_and_a_torn_record_is_kept(tmp_path):
    path = tmp_path / OWN
    path.write_text('{"kind": "held", "mono": 5.0, "wall": 9.0}\n{"kind": "st')
    wire.by_our_clock(path, 100.0)
    whole, torn = path.read_text().splitlines()
    assert json.loads(whole) == {"kind": "held", "mono": 105.0, "wall": 9.0}
    assert torn == '{"kind": "st'
