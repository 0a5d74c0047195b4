"""What the survivors of a fault saw: which error, and whom it names."""

import pytest
from evidence_builder import Scene
from takeback.matrix import Expectation

AFTER = 200.0  # s on the clock of hand-made evidence: later than every strike
SOURCE = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"
CLOSED = f"{SOURCE} Connection closed by peer {{}}. This is typically caused by a remote worker crashing. GLHF!"
RESET = f"{SOURCE} Read error {{}}: Connection reset by peer. This is typically caused by a remote worker hanging."
WAITED = f"{SOURCE} Timed out waiting 2000ms for recv operation to complete"
FOUR = {rank: f"10.77.0.{11 + rank}" for rank in range(4)}


def scene(errors, hosts=None, world=4, **more):
    """A killed leg whose last rank is the victim, with these errors of survivors: (rank, text) in order of time."""
    made = Scene(world=world, **more)
    made.drop("killed", "events", lambda events: events.kind == "error")
    for rank, host in (hosts or {}).items():
        made.add_event("killed", "launched", of_rank=rank, host=host)
    for number, (rank, text) in enumerate(errors):
        made.add_event("killed", "error", rank=rank, mono=AFTER + number, type="RuntimeError", text=text)
    return made


def saw(errors, **more):
    row = scene(errors, **more).judge()
    return row["survivors_saw"], row["names_peer"], row["blames_other"]


def test_errors_are_classes_without_places_addresses_and_numbers():
    errors = [(0, RESET.format("[127.0.0.1]:21663")), (1, CLOSED.format("[127.0.0.1]:2")), (2, WAITED)]
    assert saw(errors)[0] == (
        "RuntimeError: Read error: Connection reset by peer; RuntimeError: Connection closed by peer; "
        "RuntimeError: Timed out waiting Nms for recv operation to complete"
    )
    failed = f"Gloo connectFullMesh failed with {SOURCE} timed out connecting: Connection refused, remote=[::1]:158$0"
    assert saw([(rank, failed) for rank in range(3)])[0] == (
        "RuntimeError: Gloo connectFullMesh failed with timed out connecting: Connection refused, remote=$N"
    )


def test_survivors_that_saw_no_error_are_told():
    assert saw([]) == ("nothing", None, None)
    assert saw([(0, WAITED), (2, WAITED)])[0].endswith("; nothing")
    assert not saw([(0, WAITED), (1, WAITED), (2, WAITED)])[0].endswith("nothing")


def test_errors_of_victims_and_errors_before_the_strike_are_no_survivors():
    made = scene([(3, "my own")])
    made.add_event("killed", "error", rank=0, mono=0.5, type="RuntimeError", text="before")
    assert made.judge()["survivors_saw"] == "nothing"


def test_an_error_that_came_before_the_receipt_of_the_strike_is_a_survivor_s():
    """The supervisor was off the CPU when it had struck; or a second host, whose own victim comes later."""
    made = scene([], world=4, ranks=[2, 3])
    struck = made.evidence["killed"].events.query("kind == 'fault_armed'").monotonic.item()
    made.change("killed", "events", lambda events: events.kind == "fault_fired", monotonic=struck + 2)
    made.add_event("killed", "fault_armed", mono=struck + 1, fault="0", victims=[{"rank": 3, "pid": 103}])
    for rank in (0, 1):
        made.add_event("killed", "error", rank=rank, mono=struck + 0.1, type="RuntimeError", text=CLOSED)
    row = made.judge()
    assert (row["verdict"], row["survivors_saw"]) == ("equal", "RuntimeError: Connection closed by peer {}")
    assert row["detect_s"] == pytest.approx(0.1)


def test_without_a_survivor_there_is_nothing_to_tell():
    row = Scene(world=1).judge()
    assert (row["survivors_saw"], row["names_peer"], row["blames_other"]) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "hosts", "names", "blames"),
    [
        (CLOSED.format("[10.77.0.14]:5292"), FOUR, True, False),
        (CLOSED.format("[10.77.0.13]:5292"), FOUR, False, True),
        (CLOSED.format("[127.0.0.1]:5292"), dict.fromkeys(range(4), "127.0.0.1"), False, False),
        ("lost connection to rank 3", {}, True, False),
        ("lost connection to Rank 2", {}, False, True),
        (WAITED, FOUR, False, False),
    ],
)
def test_an_error_names_a_rank_by_its_number_or_by_an_address_that_no_other_rank_has(text, hosts, names, blames):
    assert saw([(0, text)], hosts=hosts)[1:] == (names, blames)


def test_of_each_survivor_the_first_error_counts():
    errors = [(0, WAITED), (0, "rank 3 is gone"), (1, WAITED), (2, WAITED)]
    text, names, _ = saw(errors)
    assert names is False
    assert text.endswith("; RuntimeError: rank N is gone")


@pytest.mark.parametrize(("sees", "surprise"), [("Timed out", False), ("Connection", True), (None, False)])
def test_what_survivors_see_can_be_predicted(sees, surprise):
    expect = Expectation("equal", "a reason", sees=sees)
    row = scene([(0, WAITED)], world=2, expect=expect).judge()
    assert (row["verdict"], row["surprise"], row["expected_sees"]) == ("equal", surprise, sees)
