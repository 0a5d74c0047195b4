"""The instant at which runs end for want of time: set by a workflow with a budget, read by its jobs."""

from __future__ import annotations

import math
import os
import time

VARIABLE = "TAKEBACK_UNTIL"  # Unix time in seconds, in the environment of the workflow's jobs
REASON = "budget"  # why a run, or a cell, is not there
MARK = "left_out"  # file in the folder of such a run: the next call finds it without reading evidence


def left() -> float:
    """Seconds until then; infinite without a budget."""
    return float(os.environ.get(VARIABLE, math.inf)) - time.time()
