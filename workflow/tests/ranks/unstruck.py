"""Runs legs whose faults are planned, armed, told, and do nothing: FOLDER of legs, one spec.json each."""

import json
import os
import sys
from pathlib import Path

from takeback import faults, leg_job
from takeback.launchers import local

ROOT = Path(__file__).parents[3]


def main(folder: Path) -> None:
    local.preload()
    for file in sorted(folder.glob("*.json")):
        pid = os.fork()
        if not pid:
            spec = json.loads(file.read_text())
            module = faults.get(spec["faults"][0]["kind"])
            module.strike = lambda injection: injection.let_go()
            if hasattr(module, "act"):
                module.act = lambda **_: None
            leg_job.run(spec, folder / file.stem, ROOT)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, file


if __name__ == "__main__":
    main(Path(sys.argv[1]))
