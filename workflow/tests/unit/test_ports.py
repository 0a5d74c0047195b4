"""A port that is found free stays so until whoever it is for listens there."""

import socket

import pytest
from takeback.launchers import ports


def test_a_port_is_given_once_and_whoever_it_is_for_can_listen_there(monkeypatch):
    first = ports.free_port()
    monkeypatch.setattr(ports, "PORTS", [first])
    with pytest.raises(TimeoutError):
        next_of(ports)
    with socket.create_server(("127.0.0.1", first)) as server:  # sets SO_REUSEADDR
        socket.create_connection(server.getsockname()).close()


def next_of(module, tries=20):
    """Another free port, of which there is none: it tries for ever."""
    left = iter(range(tries))

    def choice(among):
        if next(left, None) is None:
            raise TimeoutError
        return among[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.random, "choice", choice)
        return module.free_port()
