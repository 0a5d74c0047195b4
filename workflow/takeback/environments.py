"""Environments of backends that can't share the suite's: made once a user, found again from any copy or results folder.

One is named after its file ``envs/NAME.txt``, lies in the user's cache folder under a digest of that file, and is whole
once its marker is there, which is written last. ``--config NAME_python=PATH`` names an interpreter of the user's own
instead (here: the variable ``TAKEBACK_NAME_PYTHON``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from takeback.errors import TakebackError

FILES = Path(__file__).parents[2] / "envs"
VARIABLE = "TAKEBACK_ENVIRONMENT"  # name of the environment that this process runs in
MARKER = "takeback.json"
PATIENCE = 60.0  # s for an interpreter to say what is installed
_VERSIONS = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({"python": sys.version.split()[0], **{name: version(name) for name in sys.argv[1:]}}))
"""


class Unusable(TakebackError):
    """There is no such environment, or it is not what it must be: one line."""


def text(name: str) -> str:
    return (FILES / f"{name}.txt").read_text(encoding="utf-8")


def pins(name: str) -> dict[str, str]:
    """Package → version, as the file of an environment has them."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", text(name), re.M))


def home(name: str) -> Path:
    """Its folder, whether it is there or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache / "takeback" / f"{name}-{python}-{hashlib.sha256(text(name).encode()).hexdigest()[:10]}"


def digest(name: str) -> str:
    """Name of an environment, and a digest of its file."""
    return f"{name} {hashlib.sha256(text(name).encode()).hexdigest()[:10]}"


def variable(name: str) -> str:
    """Of the process's environment: the interpreter that the user has named."""
    return f"TAKEBACK_{name.upper()}_PYTHON"


def interpreter(name: str) -> Path:
    """The interpreter of an environment that is there: the user's own, or that which was made.

    Raises:
        Unusable: there is none.
    """
    if named := os.environ.get(variable(name)):
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise Unusable(f"{name}_python: {named} is no interpreter; name one that has what envs/{name}.txt lists")
        return Path(named)
    if not (home(name) / MARKER).exists():
        raise Unusable(f"no {name} environment here; make it: python -m takeback environment {name}")
    return home(name) / "bin" / "python"


def is_there(name: str) -> bool:
    """Whether an environment has an interpreter, as far as a glance can tell."""
    try:
        return bool(interpreter(name))
    except Unusable:
        return False


def versions(name: str, python: Path) -> dict[str, str]:
    """What an interpreter has of the packages that an environment needs.

    Raises:
        Unusable: one is missing, or torch is not of the version that all else there is built for.
    """
    wanted = pins(name)
    words = [str(python), "-c", _VERSIONS, *wanted]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, cwd="/", env=variables(name))
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"{python}: does not run as an interpreter: {' '.join(str(error).split())[:200]}") from None
    missing = [package for package in wanted if not found[package]]
    if missing:
        raise Unusable(f"{python}: has no {', '.join(missing)}; install envs/{name}.txt there")
    for package in (one for one in wanted if one.startswith("torch")):
        if found[package].split("+")[0] != wanted[package]:
            raise Unusable(
                f"{python}: has {package} {found[package]}, and envs/{name}.txt needs {package} {wanted[package]}"
            )
    return found


def usable(name: str) -> Path:
    """The interpreter of an environment that is there, and is what it must be; else Unusable."""
    python = interpreter(name)
    versions(name, python)
    return python


def not_in(name: str | None) -> str | None:
    """Why this process is not in the environment ``name``, in which it should be; None if it is."""
    if name is None or os.environ.get(VARIABLE) == name:
        return None
    try:
        usable(name)
    except Unusable as reason:
        return str(reason)
    return f"this process is not in the environment {name}; start it by python -m takeback leg"


def enter(name: str, python: Path) -> None:
    """Go on in the environment ``name``, as the same command of another interpreter. Does not return."""
    words = [str(python), "-m", "takeback", *sys.argv[1:]]
    os.execve(words[0], words, variables(name))


def variables(name: str) -> dict[str, str]:
    """Variables of a process in an environment: this package, and none of another environment's."""
    package = str(Path(__file__).parents[1])
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")}
    return {**kept, "PYTHONPATH": package, VARIABLE: name}


def make(name: str) -> Path:
    """Make an environment, unless it is there; two who want it make it once. Returns its interpreter.

    Raises:
        Unusable: it can't be made, with the installer's own last words.
    """
    if os.environ.get(variable(name)):
        return interpreter(name)
    folder = home(name)
    if _is_whole(name, folder):  # also where nothing may be written there
        return folder / "bin" / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
            print(f"takeback: environment {name}: made here, or waited for where another makes it", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_whole(name, folder):
                shutil.rmtree(folder, ignore_errors=True)  # of a making that was interrupted
                _install(name, folder, lock.fileno())
    except OSError as error:
        raise Unusable(f"{error.filename or folder}: {error.strerror}; name another folder by XDG_CACHE_HOME") from None
    return folder / "bin" / "python"


def _is_whole(name: str, folder: Path) -> bool:
    """Whether it was made to its end, and still has what it must have."""
    try:
        return (folder / MARKER).exists() and bool(versions(name, folder / "bin/python"))
    except Unusable:
        return False


def _install(name: str, folder: Path, lock: int) -> None:
    """``lock``: a descriptor that holds the lock until the installer has ended, also if we have not lived as long."""
    size = text(name).splitlines()[0].lstrip("# ")
    print(f"takeback: environment {name}: {size} Into {folder}", file=sys.stderr, flush=True)
    began = time.time()
    for words in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin/python"), "-I", "-m", "pip", "install", "--no-user", "-q", "-r", str(FILES / f"{name}.txt")],
    ):
        done = subprocess.run(words, capture_output=True, text=True, pass_fds=[lock])
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no word of why").splitlines()[-1]
            raise Unusable(f"the environment {name} can't be made: {' '.join(last.split())[:300]}")
    told = {"seconds": round(time.time() - began), **versions(name, folder / "bin/python")}
    (folder / MARKER).write_text(json.dumps(told) + "\n")


def record(name: str) -> dict[str, Any]:
    """Where an environment is and what it has, or why there is none; makes it if it has to be made."""
    try:
        python = make(name)
        return {"python": str(python), "versions": versions(name, python)}
    except Unusable as reason:
        return {"python": None, "reason": str(reason)}


def forget(folder: Path) -> None:
    """Remove the records of environments that could not be had, or are gone: they are to be tried again."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):  # another call may be at it too
            python = json.loads(path.read_text())["python"]
            if not python or not os.access(python, os.X_OK):
                path.unlink()
