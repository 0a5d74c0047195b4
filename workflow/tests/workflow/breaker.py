"""Runs pytest in forks of a process that has imported everything but the package: starting up costs more than a test.

One line of JSON a request, the tests' names; one a reply, exit status and output. The package itself is
imported in each fork anew, so that it is the broken one.
"""

import contextlib
import io
import json
import os
import sys

import hypothesis  # noqa: F401
import jinja2  # noqa: F401
import jsonschema  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import numpy  # noqa: F401
import pandas  # noqa: F401
import psutil  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest
import seaborn  # noqa: F401
import yaml  # noqa: F401

# Plain assertions: nobody reads why a test is red, and to rewrite those of a module takes as long as a test.
# The time-out is for tests that hang when a guard is broken; what prepares them may be slow on a busy machine.
OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "--timeout=60", "-o", "timeout_func_only=true", "--assert=plain"]


def main() -> None:
    assert not any(name.split(".")[0] == "takeback" for name in sys.modules)
    for line in sys.stdin:
        reading, writing = os.pipe()
        if not os.fork():
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            answer(json.loads(line), writing)
        os.close(writing)
        with open(reading) as pipe:
            text = pipe.read()
        os.wait()
        print(text, flush=True)


def answer(tests: list[str], writing: int) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main([*OPTIONS, *tests])
    with open(writing, "w") as pipe:
        json.dump([int(status), output.getvalue()], pipe)
    os._exit(0)


if __name__ == "__main__":
    main()
