"""One small experiment, run once for all tests that only look at what it left."""

import pytest
from flow import FOREIGN, SMALL, WRONG, Flow


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """(the flow, the completed first call) of ``snakemake small``."""
    flow = Flow(tmp_path_factory.mktemp("small"), small=SMALL, wrong=WRONG, foreign=FOREIGN)
    return flow, flow.run("small")
