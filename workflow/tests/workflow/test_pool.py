"""The warm pool: who may use it, and what happens when it can't serve."""

import json
import os
import socket
import subprocess
import sys
import time

import pandas as pd
import pytest
from launch import ROOT, fault, losses, run, script
from takeback import pool as pool_module
from takeback import pool_client
from warm import running_pool, takes_connections

LOOP = """
from takeback import probe
probe.restored(0)
for step in range(1, 4):
    probe.step(step, 1.0 / step)
"""


def ask(name, line, descriptors=(1, 2)):
    """The pool's answer to raw bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{name}")
        socket.send_fds(connection, [b"\0"], list(descriptors))
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


def test_a_run_in_the_pool_leaves_the_evidence_of_a_cold_one(pool, tmp_path, monkeypatch):
    leg = script(tmp_path, LOOP, faults=(fault(2),))
    assert run(leg, tmp_path / "cold").returncode == 0
    monkeypatch.setenv(pool_client.VARIABLE, pool)
    assert run(leg, tmp_path / "warm").returncode == 0
    cold, warm = (
        losses(leg, tmp_path / start).sort_values(["rank", "step"], ignore_index=True) for start in ("cold", "warm")
    )
    assert len(warm) == 5
    pd.testing.assert_frame_equal(cold, warm, check_exact=True)


def test_the_client_imports_neither_torch_nor_pandas(pool, tmp_path):
    leg = script(tmp_path, LOOP)
    text = (
        "import sys, json\nfrom pathlib import Path\nfrom takeback import __main__, pool_client\n"
        f"spec, folder, root = json.loads({leg.spec_json!r}), {str(tmp_path / leg.id)!r}, {str(ROOT)!r}\n"
        "status = pool_client.run(spec, Path(folder), Path(root))\n"
        "assert status == 0, status\n"
        "assert not {'torch', 'pandas', 'pyarrow', 'jsonschema', 'yaml'} & set(sys.modules)\n"
    )
    finished = subprocess.run([sys.executable, "-c", text], env={**os.environ, pool_client.VARIABLE: pool}, check=False)
    assert finished.returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"nonsense\n",
        b"{}\n",
        b"[1, 2]\n",
        json.dumps({"version": ["0", "0"], "spec": {}, "folder": "/", "root": "/"}).encode() + b"\n",
        b"",
    ],
)
def test_nonsense_is_sent_away(pool, line):
    assert ask(pool, line) == b"cold\n"


def test_a_client_of_other_sources_is_sent_away(pool, tmp_path):
    spec = script(tmp_path, LOOP).spec
    request = {"version": pool_client.version(), "spec": spec, "folder": str(tmp_path / "x"), "root": str(ROOT)}
    assert ask(pool, json.dumps({**request, "version": ["0", "0"]}).encode() + b"\n") == b"cold\n"
    assert ask(pool, json.dumps(request).encode() + b"\n") == b"started\n", "and the same with its version is not"
    assert not (tmp_path / "x").exists(), "a client that does not say go is not worked for"


def test_a_leg_with_other_hardware_settings_is_sent_away(pool, tmp_path):
    spec = script(tmp_path, LOOP, hardware={"threads": 2}).spec
    line = json.dumps({"version": pool_client.version(), "spec": spec, "folder": str(tmp_path), "root": str(tmp_path)})
    assert ask(pool, line.encode() + b"\n") == b"cold\n"


WITH_WORKERS = """
import torch.utils.data
from takeback import probe
probe.restored(0)
loader = torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=2)
for step, batch in enumerate(loader, 1):
    probe.step(step, 1.0, samples=batch.tolist())
"""


def test_a_rank_of_the_pool_may_have_worker_processes(pool, tmp_path, monkeypatch):
    """They talk through descriptors of their own; one that was closed behind Python's back is closed a second time."""
    monkeypatch.setenv(pool_client.VARIABLE, pool)
    leg = script(tmp_path, WITH_WORKERS, deadline=60.0)
    assert run(leg, tmp_path).returncode == 0
    assert len(losses(leg, tmp_path)) == 8


def test_a_stale_name_means_a_cold_start(tmp_path, monkeypatch):
    monkeypatch.setenv(pool_client.VARIABLE, "takeback-gone")
    leg = script(tmp_path, LOOP)
    assert run(leg, tmp_path).returncode == 0
    assert len(losses(leg, tmp_path)) == 6


def test_a_client_that_is_killed_takes_its_ranks_with_it(pool, tmp_path, monkeypatch):
    from launch import command_of

    monkeypatch.setenv(pool_client.VARIABLE, pool)
    leg = script(tmp_path, "import os, signal\nopen(f'up{os.environ[\"RANK\"]}', 'w')\nsignal.pause()\n")
    client = subprocess.Popen(command_of(leg, tmp_path))
    folder = tmp_path / leg.id
    while not ((folder / "up0").exists() and (folder / "up1").exists()):
        time.sleep(0.01)
    pids = [json.loads(line)["of_pid"] for line in (folder / "records/supervisor.jsonl").read_text().splitlines()]
    client.kill()
    client.wait()
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        time.sleep(0.01)
    assert not (folder / "events.parquet").exists()


def test_a_pool_is_wanted_unless_the_user_says_otherwise():
    assert pool_module.is_wanted({})
    assert pool_module.is_wanted({"warm": "true"})
    for word in ("false", "False", False, 0, "no"):
        assert not pool_module.is_wanted({"warm": word}), word


def test_the_repetition_starts_its_first_rank_from_nothing(pool, tmp_path, monkeypatch):
    """Forks share a hash seed: what depends on it must show as unrepeatable, also with a warm pool."""
    monkeypatch.setenv(pool_client.VARIABLE, pool)
    text = LOOP.replace("1.0 / step", "float(hash('a') % 10**9)")
    legs = [script(tmp_path, text, repeat=repeat) for repeat in (0, 1)]
    for leg in legs:
        assert run(leg, tmp_path).returncode == 0
    first, second = (losses(leg, tmp_path) for leg in legs)
    assert first.loss.nunique() == 1, "two forks of the pool: as if chance had no part in it"
    assert second.groupby("rank").loss.first().nunique() == 2


def test_forks_do_not_share_numpys_global_generator(pool, tmp_path, monkeypatch):
    monkeypatch.setenv(pool_client.VARIABLE, pool)
    leg = script(tmp_path, "import numpy\n" + LOOP.replace("1.0 / step", "numpy.random.rand()"))
    assert run(leg, tmp_path).returncode == 0
    assert losses(leg, tmp_path).loss.nunique() == 6


def test_a_pool_ends_with_its_workflow():
    with running_pool() as name:
        assert takes_connections(name)
    assert not takes_connections(name)
