"""The address at which others reach a host: real names, routes and interfaces, in namespaces of their own."""

import os
import shutil
import subprocess
import sys

import pytest
from takeback import network
from takeback.launchers import reached

pytestmark = pytest.mark.skipif(network.unavailable() is not None, reason=f"namespaces: {network.unavailable()}")

NAME = "host-of-a-test"
ASKS = """
from takeback.launchers import reached
at = reached.at()
print(at, reached.interface(at).get('GLOO_SOCKET_IFNAME'))
"""
NEAR = ["link add eth7 type veth peer name other", "addr add 10.78.0.5/24 dev eth7", "link set other up",
        "link set eth7 up"]  # fmt: skip
FAR = ["link add eth8 type veth peer name more", "addr add 10.79.0.5/24 dev eth8", "link set more up",
       "link set eth8 up"]  # fmt: skip
WAY_OUT = [*FAR, *NEAR, "route add default via 10.78.0.1"]


def asked(tmp_path, name_is, links=(), **variables):
    """Address and interface, on a host whose own name is at ``name_is``."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{name_is} {NAME}\n" if name_is else "127.0.0.1 localhost\n")
    names = tmp_path / "nsswitch.conf"
    names.write_text("hosts: files\n")  # nor is another asked for its name
    binds = f"mount --bind {hosts} /etc/hosts && mount --bind {names} /etc/nsswitch.conf"
    enters = f'hostname {NAME} && {binds} && ip -batch - && exec {sys.executable} -c "{ASKS}"'
    given = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "GLOO_", "NCCL_"))}
    words = [shutil.which("unshare"), "--net", "--mount", "--uts", "bash", "-c", enters]
    links = "\n".join(["link set lo up", *links])
    done = subprocess.run(words, input=links, env=given | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(done.stdout.split())


def test_a_name_that_only_its_own_host_understands_is_no_address(tmp_path):
    assert asked(tmp_path, "127.0.1.1", WAY_OUT) == ("10.78.0.5", "eth7")


@pytest.mark.parametrize("name_is", [None, "10.99.0.1"], ids=["none", "another's"])
def test_a_name_without_an_address_here_is_no_hindrance(tmp_path, name_is):
    assert asked(tmp_path, name_is, WAY_OUT) == ("10.78.0.5", "eth7")


def test_a_name_with_an_address_stands(tmp_path):
    assert asked(tmp_path, "10.79.0.5", WAY_OUT) == ("10.79.0.5", "None")


def test_a_host_without_a_way_out_has_the_address_of_an_interface(tmp_path):
    assert asked(tmp_path, "127.0.1.1", NEAR) == ("10.78.0.5", "eth7")


def test_a_host_without_an_interface_is_reached_by_itself(tmp_path):
    assert asked(tmp_path, "127.0.1.1") == ("127.0.0.1", "None")


def test_the_address_that_ssh_called_stands_and_gloo_is_brought_there(tmp_path):
    called = asked(tmp_path, "127.0.1.1", WAY_OUT, SSH_CONNECTION="10.79.0.1 9 10.79.0.5 22")
    assert called == ("10.79.0.5", "eth8")


def test_the_interface_that_a_user_names_stands_and_has_the_address(tmp_path):
    assert asked(tmp_path, "127.0.1.1", WAY_OUT, GLOO_SOCKET_IFNAME="eth8") == ("10.79.0.5", "None")


def test_who_called_is_told_by_ssh_alone(monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.79.0.1 9 10.79.0.5 22")
    assert reached.caller() == "10.79.0.1"
    monkeypatch.delenv("SSH_CONNECTION")
    assert reached.caller() == ""
