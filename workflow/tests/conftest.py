"""For all tests: what a missing tool means, and that nothing is left."""

import os

import pytest
from warm import running_pool


@pytest.fixture(scope="session")
def pool():
    """Name of the socket of a warm pool that all tests share."""
    with running_pool() as name:
        yield name


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory):
    """Whatever the tests did, no process or mount of theirs outlives them."""
    yield
    assert left(str(tmp_path_factory.getbasetemp())) == []


def pytest_sessionfinish(session):
    """Nor does a control group, socket, shared memory or temporary file, when the last of several workers is done."""
    if not hasattr(session.config, "workerinput") and (lines := left("has ended")):
        pytest.exit(f"the tests have left: {'; '.join(lines)}", returncode=1)


def left(word):
    from takeback.leftovers import leftovers

    return [line for line in leftovers() if word in line]


def pytest_collection_modifyitems(config, items):
    """Among several workers, the longest file first: none then waits for the other's last."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: "test_lessons" not in item.nodeid)


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
