"""Where the ranks of ``hosts`` run, and the words that run a command there: no shell here, and quoted for one there.

Sources: ssh(1), ssh_config(5);
https://docs.cloud.google.com/sdk/gcloud/reference/compute/tpus/tpu-vm/ssh,
https://kubernetes.io/docs/reference/kubectl/generated/kubectl_exec.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from takeback.document import read
from takeback.errors import ExperimentError
from takeback.sources import PACKAGE

VARIABLE = "TAKEBACK_HOSTS"  # path of the file that names the hosts
#: Of ssh, before the user's own, so that these win: ssh_config(5) takes the first value that it finds.
SSH = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "UpdateHostKeys": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ConnectionAttempts": "1",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "6",
    "LogLevel": "ERROR",
}
SSH_WORDS = [f"-o{name}={value}" for name, value in SSH.items()]
#: The same for what a flag of the user's may have turned on: of flags the last one counts, also after the host.
SSH_FLAGS = ["-a", "-k", "-x", "-T"]
#: A node of the Slurm job that we are in, beside the job's other steps, with our environment also where the site gives
#: jobs none: srun(1). Not with the connection by which the user came: a host takes its end for its own address.
SRUN = "srun --quiet --overlap --export=ALL --nodes=1 --ntasks=1 --nodelist={host} env -u SSH_CONNECTION {words}"
#: What gcloud needs to check the key of a host as strictly.
GCLOUD = "--strict-host-key-checking=yes"


def digest() -> str:
    """Of the file that names the hosts; empty where none does: what ran on other hosts is to be run again."""
    path = os.environ.get(VARIABLE)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path and Path(path).is_file() else ""


@dataclass(frozen=True)
class Place:
    """Hosts, and how to get there; the attributes are those of ``hosts.schema.yaml``."""

    hosts: Sequence[str]
    command: str
    python: str = sys.executable
    folder: str = str(PACKAGE.parents[1])
    shared: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = shlex.split(self.command)
        if Path(words[0]).name == "gcloud" and GCLOUD not in words:
            raise ExperimentError(f"command: gcloud would trust any key of a host; add {GCLOUD}")
        if is_ssh(words) and has_place(words):
            raise ExperimentError("command: ssh takes what it runs at its end; leave {command} and {words} out")
        if len(set(self.hosts)) < len(self.hosts) and "{index}" not in self.command:
            raise ExperimentError("hosts: one stands there twice; name each once, or tell them apart by {index}")

    def words(self, node: int, module: str, environment: dict[str, str]) -> list[str]:
        """The words that run ``python -m MODULE`` on host ``node``, to be executed without a shell."""
        variables = {"PYTHONPATH": str(Path(self.folder, PACKAGE.parent.name)), **self.environment, **environment}
        remote = ["env", *(f"{name}={value}" for name, value in variables.items()), self.python, "-m", module]
        template = shlex.split(self.command)
        if is_ssh(template):
            template = [template[0], *SSH_WORDS, *template[1:], *SSH_FLAGS]
        if not has_place(template):
            template.append("{command}")
        words: list[str] = []
        for word in template:
            if word == "{words}":
                words += remote
            else:  # the command last: what it says is not looked through
                named = word.replace("{host}", self.hosts[node]).replace("{index}", str(node))
                words.append(named.replace("{command}", shlex.join(remote)))
        return words


def allocated(count: int) -> Place | None:
    """The nodes of the Slurm job that we are in (sbatch(1), SLURM_JOB_NODELIST), if there are ``count`` of them."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes or not shutil.which("scontrol"):
        return None
    told = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    names = told.stdout.split()
    return Place(names, SRUN) if len(names) >= count else None


def is_ssh(template: Sequence[str]) -> bool:
    return Path(template[0]).name == "ssh"


def has_place(template: Sequence[str]) -> bool:
    """Whether it says where the command goes."""
    return any(place in word for word in template for place in ("{words}", "{command}"))


def named() -> Place | None:
    """The place that the user has named, if any.

    Raises:
        ExperimentError: its file can't be read, or has a mistake; one line.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        return Place(**read(Path(path), "hosts"))
    except ValueError as error:  # of shlex: no closing quotation
        raise ExperimentError(f"{path}: command: {error}") from None
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
