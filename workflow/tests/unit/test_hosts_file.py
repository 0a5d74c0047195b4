"""Where the ranks of several hosts run: the file that says so, and the words that run a command there."""

import contextlib
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from takeback import document
from takeback.errors import EvidenceError, ExperimentError
from takeback.launchers import place
from takeback.launchers.group import Group, NotRun
from takeback.launchers.place import Place

MODULE = "takeback.launchers.on_host"
NASTY = {
    "SUBSTITUTED": "$(touch struck) `touch struck` ${HOME}",
    "CHAINED": "; touch struck & touch struck | touch struck > struck\ntouch struck",
    "QUOTED": "'\"'; touch struck; '\" \\",
    "PLACES": "{host} {index} {command} {words}",
}


def words(command, host="h1", node=0, **more):
    there = Place([f"h{number}" for number in range(node)] + [host], command, "/py", "/repo", **more)
    return there.words(node, MODULE, {})


REMOTE = ["env", "PYTHONPATH=/repo/workflow", "/py", "-m", MODULE]


def test_over_ssh_a_command_is_one_word_quoted_for_the_shell_there():
    found = words("ssh -p 2222 {host}", "user@10.0.0.7")
    assert found[0] == "ssh"
    assert found[-8:] == ["-p", "2222", "user@10.0.0.7", *place.SSH_FLAGS, " ".join(REMOTE)]


def test_over_gcloud_a_command_goes_to_one_worker_of_a_pod():
    """gcloud compute tpus tpu-vm ssh [USER@]TPU --worker=WORKER --command=COMMAND."""
    template = (
        "gcloud compute tpus tpu-vm ssh {host} --worker={index} --strict-host-key-checking=yes --command={command}"
    )
    there = Place(["my-pod", "my-pod"], template, "/py", "/repo")
    assert there.words(1, MODULE, {"A": "b c"}) == [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-pod", "--worker=1", "--strict-host-key-checking=yes"),
        f"--command=env PYTHONPATH=/repo/workflow 'A=b c' /py -m {MODULE}",
    ]


def test_over_kubectl_a_command_is_words_after_two_dashes():
    """kubectl exec POD -c CONTAINER -i -- COMMAND [args...]: "do not surround your command with quotes"."""
    found = words("kubectl exec {host} -c trainer -i -- {words}", "rank-1", environment={"A": "b c"})
    assert found == ["kubectl", "exec", "rank-1", "-c", "trainer", "-i", "--", *REMOTE[:2], "A=b c", *REMOTE[2:]]


@pytest.mark.parametrize("command", ["sh -c {command}", "{words}"])
def test_what_stands_in_the_file_reaches_the_program_as_it_is_and_no_shell(tmp_path, command):
    """``sh -c`` does what sshd does with a command."""
    (tmp_path / "tell.py").write_text("import json, os\nprint(json.dumps(dict(os.environ)))\n")
    there = Place(["h"], command, sys.executable, environment={**NASTY, "PYTHONPATH": str(tmp_path)})
    done = subprocess.run(
        there.words(0, "tell", {"OF_THE_CELL": NASTY["CHAINED"]}), cwd=tmp_path, capture_output=True, check=True
    )
    told = json.loads(done.stdout)
    assert {name: told[name] for name in NASTY} == NASTY
    assert told["OF_THE_CELL"] == NASTY["CHAINED"]
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["tell.py"]


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh (with sshd)")
def test_keys_are_checked_and_no_agent_is_forwarded_whatever_else_the_command_says():
    weak = "-oStrictHostKeyChecking=no -oBatchMode=no -oForwardAgent=yes -oPasswordAuthentication=yes"
    first, *rest = words(f"ssh -F none -A -X {weak} {{host}}")
    done = subprocess.run([first, "-G", *rest], capture_output=True, text=True, check=True)
    options = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    wanted = {"stricthostkeychecking": "true", "batchmode": "yes", "passwordauthentication": "no"}
    wanted |= {"forwardagent": "no", "forwardx11": "no"}
    assert {name: options[name] for name in wanted} == wanted
    assert int(options["connecttimeout"]) <= 10


GOOD = {"hosts": ["a", "b"], "command": "ssh {host}"}
MISTAKES = {
    "an option in place of a host": ({"hosts": ["-oProxyCommand=touch struck"]}, ["hosts.0", "does not match"]),
    "a shell in place of a host": ({"hosts": ["a; touch struck"]}, ["hosts.0"]),
    "no host": ({"hosts": []}, ["hosts", "at least one"]),
    "an option in place of a variable": ({"environment": {"-S touch": "x"}}, ["environment", "-S touch"]),
    "an unknown key": ({"pasword": "x"}, ["pasword", "allowed", "shared"]),
    "a quotation without an end": ({"command": "ssh '{host}"}, ["command", "No closing quotation"]),
    "gcloud that takes any key": ({"command": "gcloud compute ssh {host}"}, ["gcloud", place.GCLOUD]),
    "ssh with a place for the command": ({"command": "ssh {host} -- {command}"}, ["command", "at its end"]),
    "one host twice": ({"hosts": ["a", "a"]}, ["twice", "{index}"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path, monkeypatch, mistake):
    change, told = MISTAKES[mistake]
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({**GOOD, **change}))
    monkeypatch.setenv(place.VARIABLE, str(tmp_path / "hosts.yaml"))
    with pytest.raises(ExperimentError) as error:
        place.named()
    text = str(error.value)
    assert "\n" not in text
    for word in ("hosts.yaml", *told):
        assert word in text


def test_a_file_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setenv(place.VARIABLE, "/nowhere/hosts.yaml")
    with pytest.raises(ExperimentError, match=r"/nowhere/hosts\.yaml: cannot be read"):
        place.named()


def test_a_good_file_says_what_it_leaves_out(tmp_path, monkeypatch):
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(GOOD))
    monkeypatch.setenv(place.VARIABLE, str(tmp_path / "hosts.yaml"))
    found = place.named()
    assert (found.hosts, found.python, found.shared) == (["a", "b"], sys.executable, True)
    monkeypatch.delenv(place.VARIABLE)
    assert place.named() is None


def test_each_key_of_the_file_is_in_the_readme():
    text = (document.SCHEMAS.parents[1] / "experiments/README.md").read_text()
    section = text.partition("## Hosts")[2].partition("\n## ")[0]
    for key in document.schema("hosts")["properties"]:
        assert f"| `{key}` |" in section


def test_of_hosts_that_do_not_come_the_one_that_is_over_is_named_with_its_reason():
    waits = SimpleNamespace(name="a", over=False, told={})
    fails = SimpleNamespace(name="b", over=True, told={}, why=lambda: "Host key verification failed.")
    group = SimpleNamespace(hosts=[waits, fails], hear_until=lambda done, seconds: None)
    with pytest.raises(NotRun, match=r"^host b: Host key verification failed\.$"):
        Group.await_all(group, "hello", 60)


def test_a_host_that_has_greeted_and_fails_then_is_an_error_and_no_reason_not_to_run():
    broken = SimpleNamespace(name="a", over=True, told={"hello": {}}, why=lambda: "MemoryError", errors="host-0.txt")
    group = SimpleNamespace(hosts=[broken], hear_until=lambda done, seconds: None)
    with pytest.raises(EvidenceError, match=r"^host a: MemoryError; see host-0\.txt"):
        Group.await_all(group, "ready", 60)


@pytest.mark.parametrize(("address", "clocks", "reached"), [
    ("127.0.1.1", ("a", "b"), False), ("127.0.1.1", ("a", "a"), True), ("10.0.0.7", ("a", "b"), True),
])  # fmt: skip
def test_hosts_on_several_machines_need_an_address_that_is_none_of_each_ones_own(address, clocks, reached):
    hosts = [SimpleNamespace(name="h", told={"hello": {"clock": c}, "ready": {"address": address}}) for c in clocks]
    with (
        contextlib.nullcontext() if reached else pytest.raises(NotRun, match=r"no address of its own but 127\.0\.1\.1")
    ):
        Group.look_at_address(SimpleNamespace(hosts=hosts))
