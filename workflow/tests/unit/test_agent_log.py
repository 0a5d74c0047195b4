"""What agents of torchrun tell, in lines of torch 2.13."""

import json

from takeback.launchers import agent_log

RUN = "torch/distributed/elastic"


def line(text, place="agent/server/api.py:707", when="1130 02:43:56.046000"):
    return f"I{when} 9086 {RUN}/{place}] {text}"


def started(pid, rank, restarts=0, state="START"):
    inner = json.dumps({"local_rank": [0], "role_rank": [rank]})
    told = {"worker_id": str(pid), "global_rank": rank, "agent_restarts": restarts, "metadata": inner}
    return json.dumps(
        {"name": f"torchelastic.worker.status.{state}", "source": "WORKER", "timestamp": 0, "metadata": told}
    )


def read(tmp_path, *lines):
    path = tmp_path / "node-0.txt"
    path.write_text("\n".join(lines) + "\n")
    return agent_log.read(path, 2026)


def joined(number):
    return line(
        f"The node 'here_9086_0' has joined round {number} of the rendezvous 'x' as rank 0 in a world of size 2."
    )


def test_a_worker_is_of_the_round_that_its_agent_has_joined_last(tmp_path):
    log = read(tmp_path, joined(0), started(11, 0), joined(3), started(12, 1, 1))
    assert [(one.pid, one.rank, one.restarts, one.round) for one in log.started] == [(11, 0, 0, 0), (12, 1, 1, 3)]


def test_without_rounds_the_count_of_restarts_tells_groups_apart(tmp_path):
    log = read(tmp_path, started(11, 0), started(12, 0, 1))
    assert [one.round for one in log.started] == [0, 1]


def test_a_failure_tells_when_it_was_noticed_and_how_the_process_ended(tmp_path):
    log = read(tmp_path, line("failed (exitcode: -9) local_rank: 0 (pid: 13257) of binary: python"))
    assert log.ended == {13257: -9}
    assert log.noticed == [agent_log.seconds("1130 02:43:56.046000", 2026)]


def test_a_worker_that_succeeded_has_ended_with_0(tmp_path):
    assert read(tmp_path, started(11, 0), started(11, 0, state="SUCCEEDED")).ended == {11: 0}


def test_newcomers_are_noticed_too(tmp_path):
    text = "[default] Detected 1 new nodes from group_rank=0; will restart worker group"
    assert len(read(tmp_path, line(text)).noticed) == 1


def test_whom_the_agent_stopped_is_told_by_pid(tmp_path):
    texts = "Sending process 7 closing signal SIGTERM", "Unable to shutdown process 8 via 15, forcefully exiting via 9"
    assert read(tmp_path, *map(line, texts)).closed == {7, 8}


def test_what_ranks_print_is_passed_over(tmp_path):
    log = read(tmp_path, "failed (exitcode: 3) local_rank: 0 (pid: 1)", "Sending process 7 closing signal SIGTERM")
    assert (log.ended, log.closed, log.noticed, log.started) == ({}, set(), [], [])


def test_without_output_nothing_is_told(tmp_path):
    assert agent_log.read(tmp_path / "none.txt", 2026).started == []
