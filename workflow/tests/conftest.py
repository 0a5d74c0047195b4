"""For all tests: what a missing tool means, and that nothing is left."""

import os

import pytest
from hypothesis import HealthCheck, settings
from warm import running_pool

# A busy machine may take its time over an example, and two runs of the suite try the same ones.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture(scope="session")
def pool():
    """Name of the socket of a warm pool that all tests share."""
    with running_pool() as name:
        yield name


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory):
    """Whatever the tests did, no process, mount or shared memory of theirs outlives them."""
    from takeback.leftovers import leftovers

    yield
    ours = str(tmp_path_factory.getbasetemp())
    assert [line for line in leftovers() if ours in line or "has ended" in line] == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """``TAKEBACK_REQUIRE=chromium,root,swift,sshd,slurm,kubernetes,xla`` turns a skip that names one of these into a
    failure.
    """
    report = yield
    required = [name for name in os.environ.get("TAKEBACK_REQUIRE", "").split(",") if name]
    if report.skipped and any(name in str(report.longrepr) for name in required):
        report.outcome = "failed"
        report.longrepr = f"required by TAKEBACK_REQUIRE: {report.longrepr[-1]}"
    return report
