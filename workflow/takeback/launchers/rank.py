"""One rank: from a fork of the supervisor to the trainer's own program as ``__main__``."""

from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from takeback import probe
from takeback.launchers import process

PYTHON = ("python", "python3")


def runs_in_a_fork(words: list[str]) -> bool:
    """Whether a command is ``python FILE …`` or ``python -m MODULE …``, with no option of the interpreter's own."""
    return words[0] in PYTHON and len(words) > 1 and (words[1].endswith(".py") or (words[1] == "-m" and len(words) > 2))


def placed(command: list[str], root: Path) -> list[str]:
    """The words of a command with files that are relative to ``root`` as they can be had from anywhere."""
    words = [str(root / word) if (root / word).is_file() else word for word in command]
    return [sys.executable, *words[1:]] if words[0] in PYTHON else words


def start(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    root: Path,
    output: Path,
    afresh: bool = False,
    enter: Sequence[Callable[[], None]] = (),
) -> int:
    """Fork one rank and return its pid.

    ``python FILE …`` and ``python -m MODULE …`` go on in the fork, which has torch imported already;
    any other command replaces it. Either way the program sees the standard variables of its launcher.

    Args:
        afresh: start a new interpreter in any case. Forks of one process have one hash seed among other things
            that chance gives to each process: what depends on it looks repeatable, until a rank is started afresh.
        enter: called in the new process first: what puts it into surroundings of its own.
    """
    supervisor = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal whose handler raises while the interpreter runs its hooks of a fork would be lost: it waits till then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    try:
        process.die_with_parent(supervisor)
        os.setsid()  # a Ctrl-C at the terminal is the supervisor's to handle
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        stdout = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stdout, 2)
        os.environ.update(environment)
        for step_inside in enter:
            step_inside()
        words = placed(command, root)
        os.chdir(folder)
        if runs_in_a_fork(command) and not afresh:
            if "numpy" in sys.modules:  # its global generator has a seed of chance in a process of its own
                sys.modules["numpy"].random.seed()
            run_python(words[1:])
        os.execvp(words[0], words)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)  # EX_SOFTWARE: the launcher failed, not the trainer


def run_python(words: list[str]) -> NoReturn:
    """In a fork: run ``FILE ARG…`` or ``-m MODULE ARG…`` as ``__main__``, as the interpreter itself would, and end.

    The program's globals are kept alive to the end, on purpose: where they are cleared first, a
    DistributedDataParallel among them joins a thread of its gloo group while it holds the interpreter
    lock which that thread waits for (torch 2.13; seen as a hang after the last line of the program).
    """
    for inherited in list(weakref.finalize._registry):
        inherited.atexit = False  # those of torch's own modules take a tenth of a second, for nothing
    probe.connect()
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        if words[0] == "-m":
            spec = importlib.util.find_spec(words[1])
            if spec is not None and spec.submodule_search_locations is not None:  # a package
                spec = importlib.util.find_spec(f"{words[1]}.__main__")
            if spec is None or not spec.origin:
                raise SystemExit(f"no module named {words[1]!r} that could be run")
            main.__spec__, main.__package__ = spec, spec.parent
            path, words = spec.origin, words[1:]
        else:
            path = words[0]
            sys.path.insert(0, str(Path(path).parent))
        main.__file__ = path
        sys.argv = [path, *words[1:]]
        exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    # The interpreter's own way out, as far as it can be had in a fork: threads are joined, exit functions run.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
