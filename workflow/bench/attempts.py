"""What the suite adds to a run: the supervisor's own CPU, a repetition, and the way from a kill to the next step.

As a script it prints samples as JSON. It forks supervisors as the warm pool does, so that the kernel can say what each
has used without its ranks; the way back from a kill goes through a real pool and its client, as a job does.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from takeback import evidence, experiment, leg_job, pool
from takeback.leg import Leg

ROOT = Path(__file__).parents[2]


def main(file: Path, folder: Path) -> None:
    os.environ |= leg_job.IMPORT_TIME
    pool.warm()
    cells = experiment.load(file, ROOT).cells
    legs = {leg.id: leg for cell in cells if cell.axes["world"] == cell.axes["resume_world"] for leg in cell.legs}
    samples = [supervised(leg, folder) for leg in legs.values()]
    cell = next(cell for cell in cells if cell.axes["world"] == cell.axes["resume_world"] == 2)
    pool.start()
    client(cell.killed, folder)  # the first one waits for the pool's imports
    samples.append({"role": "resumed", "world": 2, "run": cell.id, "back": way_back(cell.killed, cell.resumed, folder)})
    print(json.dumps(samples))


def supervised(leg: Leg, folder: Path) -> dict[str, object]:
    """One run under a supervisor forked from here: its wall seconds, its own CPU seconds, and those of its ranks."""
    reading, writing = os.pipe()
    started = time.perf_counter()
    if not (pid := os.fork()):
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        leg_job.run(leg.spec, folder / leg.id, ROOT)
        own, ranks = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        os.write(writing, json.dumps([own.ru_utime + own.ru_stime, ranks.ru_utime + ranks.ru_stime]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        own, ranks = json.loads(pipe.read())
    os.waitpid(pid, 0)
    role = leg.label.partition("-")[0]
    wall = time.perf_counter() - started
    return {"role": role, "world": leg.world, "run": leg.id, "wall": wall, "own": own, "ranks": ranks}


def way_back(killed: Leg, resumed: Leg, folder: Path) -> float:
    """Seconds from the end of the killed run's last rank to the end of the resumed run's first step on all ranks."""
    client(killed, folder)
    client(resumed, folder)
    ended = [row["monotonic"] for row in events(killed, folder) if row["kind"] == "exited"]
    stepped = [row["monotonic"] for row in events(resumed, folder) if row["kind"] == "first_step"]
    return max(stepped) - max(ended)


def client(leg: Leg, folder: Path) -> None:
    """One run through the pool, as the rule of that name does it."""
    words = [sys.executable, "-m", "takeback", "leg", str(folder / leg.id), "--spec", leg.spec_json]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def events(leg: Leg, folder: Path) -> list[dict]:
    return evidence.read_rows(folder / leg.id / "events.parquet", "events")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
