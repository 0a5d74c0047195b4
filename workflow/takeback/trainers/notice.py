"""The notice that the machine goes: from a signal or a metadata server to one step at which all ranks save.

A notice reaches ranks at different instants, and some not at all. Who acts on it alone leaves the
others in a collective that he never enters; so the ranks agree, once a step, whether any has it.

Sources: SIGTERM; GCE's ``instance/preempted``, which holds ``TRUE`` from then on
(cloud.google.com/compute/docs/instances/create-use-preemptible); EC2's ``spot/instance-action``,
which is 404 until then (docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html).
Their hosts come from the variables that the vendors' own libraries read.
"""

from __future__ import annotations

import os
import signal
import threading
import urllib.error
import urllib.request

import torch
import torch.distributed as dist

EVERY = 0.05  # s between two looks at a metadata server
STATUS = 128 + signal.SIGTERM  # exit status of a run that leaves on notice: it is not finished


class Notice:
    """Whether this rank, or any, has been told to go.

    Args:
        how: ``ignore``: a SIGTERM ends the process as ever. ``agree``: all ranks save at one step, and leave.
            ``alone``: bug on purpose, each rank acts when it has the notice itself.
    """

    def __init__(self, how: str) -> None:
        self.how = how
        self.told = threading.Event()
        if how == "ignore":
            return
        signal.signal(signal.SIGTERM, lambda *_: self.told.set())
        source = metadata_source()
        if source is not None:
            threading.Thread(target=self._watch, args=source, daemon=True).start()

    def leaves(self, group: dist.ProcessGroup, device: torch.device) -> bool:
        """Asked by every rank after every step: whether to save now and leave."""
        if self.how == "agree":
            any_told = torch.tensor([int(self.told.is_set())], device=device)
            dist.all_reduce(any_told, dist.ReduceOp.MAX, group=group)
            return bool(any_told)
        return self.told.is_set()

    def _watch(self, url: str, headers: dict[str, str], word: str) -> None:
        request = urllib.request.Request(url, headers=headers)
        while not self.told.wait(EVERY):
            try:
                with urllib.request.urlopen(request, timeout=1) as answer:
                    if word in answer.read().decode():
                        self.told.set()
            except (urllib.error.URLError, OSError):
                pass  # not yet; or the server is away for a moment, as real ones are


def metadata_source() -> tuple[str, dict[str, str], str] | None:
    """URL, headers, and the word in the answer that is the notice; None where no server is named."""
    if host := os.environ.get("GCE_METADATA_HOST"):
        return f"http://{host}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}, "TRUE"
    if endpoint := os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        return f"{endpoint}/latest/meta-data/spot/instance-action", {}, "action"
    return None
