"""Kernels and threads that a leg asks for: what its ranks really have, with real processes."""

import json

import pytest
from launch import events, losses, run, script
from takeback import machine, pool_client

# Sums of exponentials, whose last bits are those of the kernels.
SUMS = """
import torch
from takeback import probe
torch.manual_seed(0)
values = torch.linspace(-1, 1, 100_003).exp().double()
probe.restored(0)
for step in range(1, 3):
    probe.step(step, values.sum() * step)
"""


def fingerprint(leg, runs):
    return json.loads((runs / leg.id / "provenance.json").read_text())["fingerprint"]


@pytest.fixture(params=["warm", "cold"])
def start(request, pool, monkeypatch):
    """From forks of the pool, and each leg from a new interpreter."""
    if request.param == "warm":
        monkeypatch.setenv(pool_client.VARIABLE, pool)


@pytest.mark.usefixtures("start")
def test_each_rank_has_the_kernels_that_its_leg_asks_for(tmp_path):
    """The repetition too, whose first rank starts afresh; the machine's own are others wherever it can do AVX2."""
    if machine.lacks("avx2"):
        pytest.skip("needs AVX2")
    legs = {
        name: script(tmp_path, SUMS, hardware={"capability": name, "threads": 1}, repeat=int(name == "default"))
        for name in ("default", "avx2")
    }
    for name, leg in legs.items():
        assert run(leg, tmp_path).returncode == 0
        told = events(leg, tmp_path, "restored")
        assert set(told.kernels) == {name.upper()}
        assert len(told) == 2
        assert fingerprint(leg, tmp_path)["cpu_capability"] == name.upper()
    bits = {name: tuple(losses(leg, tmp_path).sort_values(["rank", "step"]).loss_bits) for name, leg in legs.items()}
    assert bits["default"] != bits["avx2"]


def test_threads_are_those_that_the_ranks_have_and_not_those_that_were_asked_for(tmp_path, pool, monkeypatch):
    monkeypatch.setenv(pool_client.VARIABLE, pool)
    leg = script(tmp_path, SUMS.replace("torch.manual_seed(0)", "torch.set_num_threads(2)"), world=1)
    assert run(leg, tmp_path).returncode == 0
    assert fingerprint(leg, tmp_path)["threads"] == "2"


def test_kernels_that_the_processor_can_not_run_are_not_run(tmp_path, monkeypatch):
    """Torch does not look: its ranks would end by SIGILL."""
    reason = machine.lacks("avx512")
    if set(machine.NEEDS["avx512"]) <= set(machine.cpu()[1].split()):
        pytest.skip("this processor has AVX-512")
    leg = script(tmp_path, SUMS, hardware={"capability": "avx512", "threads": 1})
    assert run(leg, tmp_path).returncode == 0
    assert list(events(leg, tmp_path, "not_run").reason) == [reason]
    assert len(losses(leg, tmp_path)) == 0
