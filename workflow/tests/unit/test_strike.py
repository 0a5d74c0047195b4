"""One strike on several hosts: whose victims are stopped, who strikes first, and that nobody waits for ever."""

import pytest
from takeback import faults
from takeback.launchers import hosts, on_host, strike
from takeback.launchers.strike import Strike


class FakeHost:
    """A host that writes down what it is told."""

    def __init__(self, name, said):
        self.name, self.said, self.over = name, said, False

    def tell(self, **order):
        self.said.append((self.name, *order.items()))


def test_a_rank_that_has_held_itself_and_ended_before_the_order_came_is_let_go_no_more(tmp_path):
    fault = {"id": "0", "kind": "sigkill", "ranks": "all", "point": "step", "step": 3, "attempt": 0}
    told = []
    injector = on_host.HostInjector([fault], tmp_path, 2, {}, lambda kind, **_: told.append(kind), 0)
    injector.told["0"] = {"number": 1, "rank": 1, "pid": 0, "step": 3}
    injector.strike("0", {})
    assert told == ["fault_armed", "fault_fired"]


@pytest.fixture
def said():
    return []


@pytest.fixture
def three(said):
    return [FakeHost(name, said) for name in "abc"]


STOPPED, FIRED = ({"kind": kind, "fault": "0"} for kind in ("victims_stopped", "fault_fired"))
STOPS = [("b", ("stop", "0")), ("c", ("stop", "0"))]
FIRST = [("a", ("strike", "0"))]
OTHERS = [("b", ("strike", "0")), ("c", ("strike", "0"))]


def test_a_kill_comes_to_the_first_host_when_the_others_are_stopped_and_to_them_after_it(three, said):
    kill = Strike("0", three, kills=True)
    kill.heard(three[1], STOPPED)
    kill.heard(three[1], STOPPED)
    kill.heard(three[2], {**STOPPED, "fault": "1"})
    assert said == STOPS
    kill.heard(three[2], STOPPED)
    assert said == STOPS + FIRST
    kill.heard(three[2], STOPPED)
    kill.heard(three[0], FIRED)
    kill.heard(three[1], FIRED)
    assert said == STOPS + FIRST + OTHERS


@pytest.mark.parametrize(("count", "kills"), [(3, False), (1, True)])
def test_what_kills_nobody_or_on_one_host_only_strikes_at_once(three, said, count, kills):
    Strike("0", three[:count], kills)
    assert said == [("a", ("strike", "0")), *OTHERS][:count]


def test_a_host_that_is_lost_is_not_waited_for(three, said):
    kill = Strike("0", three, kills=True)
    kill.heard(three[1], STOPPED)
    three[2].over = True
    kill.go_on()
    assert said == STOPS + FIRST


def test_a_host_that_does_not_answer_holds_nobody_up_for_ever(three, said, monkeypatch):
    monkeypatch.setattr(strike, "PATIENCE", -1.0)
    Strike("0", three, kills=True)
    assert said == STOPS + FIRST + OTHERS


def test_who_kills_at_once_says_so_unless_it_takes_the_link_away():
    """Those whose victims do it to themselves strike each by itself."""
    at_once = {kind for kind in hosts.FAULTS if faults.get(kind).ENDS_BY == [{"signal": 9}]} - set(on_host.NETWORK)
    assert at_once == {kind for kind in hosts.FAULTS if getattr(faults.get(kind), "KILLS", False)}
