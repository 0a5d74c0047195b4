"""The verbs: ``python -m takeback VERB …``. Only this module knows those who break and those who judge.

Each verb imports what it needs when it is called: a run needs no pandas, a figure no torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def leg(args: argparse.Namespace) -> int:
    from takeback import backends, environments, pool_client

    if args.parent not in (None, os.getppid()):
        return 1  # the workflow has ended before this line
    spec, folder = json.loads(args.spec), args.folder.resolve()
    elsewhere = backends.get(spec["backend"]).ENVIRONMENT
    status = pool_client.run(spec, folder, args.root.resolve(), elsewhere)
    if status is not None:
        return status
    if elsewhere and os.environ.get(environments.VARIABLE) != elsewhere:
        with contextlib.suppress(environments.Unusable):  # the leg itself then says why it could not run
            environments.enter(elsewhere, environments.usable(elsewhere))

    from takeback import leg_job
    from takeback.launchers import process

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bound = [process.descriptor_of_parent(args.parent)] if args.parent else []
    leg_job.run(spec, folder, args.root.resolve(), bound)
    return 0


def pool(args: argparse.Namespace) -> int:
    from takeback import pool

    pool.serve(args.socket, args.parent)
    return 0


def environment(args: argparse.Namespace) -> int:
    from takeback import environments

    found = environments.record(args.name)
    if args.record:
        from takeback import evidence  # by hand this needs nothing beyond the standard library

        evidence.write_json(args.record, found)
    print(found["python"] or f"takeback: {found['reason']}")
    return 0 if args.record else int(not found["python"])


def cells(args: argparse.Namespace) -> int:
    from takeback import experiment

    path = args.file if args.file.suffix else args.root / "experiments" / f"{args.file}.yaml"
    found = experiment.load(path, args.root)
    for cell in found.cells:
        print(f"{cell.expect.verdict:<10} {cell.id}" + (f"   control: {cell.control}" if cell.control else ""))
    print(f"{len(found.cells)} cells, {len(found.legs)} runs")
    return 0


def verdicts(args: argparse.Namespace) -> int:
    from takeback import experiment, parallel, sources, verdicts

    found = experiment.load(args.file, args.root)
    processes = args.processes or parallel.cores()
    judged = verdicts.judge_experiment(found, args.results / "runs", processes, args.partly)
    folder = args.results / found.name
    folder.mkdir(parents=True, exist_ok=True)
    verdicts.write(
        folder, found, judged, {"takeback.experiment": found.digest, "takeback.checkers": sources.digest("checkers")}
    )
    return 0


def page(args: argparse.Namespace) -> int:
    from takeback import evidence, experiment, provenance, report
    from takeback.figures.draw import draw

    found = experiment.load(args.file, args.root)
    folder, runs = args.results / found.name, args.results / "runs"
    judged = evidence.read_table(folder / "verdicts.parquet", "verdicts")
    draw(found, judged, runs, folder / "figures")
    ran = {
        leg.id
        for cell, verdict in zip(found.cells, judged.verdict, strict=True)
        if verdict != "not-run"
        for leg in cell.legs
    }
    legs = [evidence.read_json(runs / leg / "provenance.json") for leg in sorted(ran)]
    provenance.write(provenance.of_experiment(found, judged, legs), folder)
    report.write(found, folder)
    return 0


def check(args: argparse.Namespace) -> int:
    from takeback import evidence, summary

    judged = evidence.read_table(args.results / args.name / "verdicts.parquet", "verdicts")
    text, status = summary.terminal_summary(judged, str(args.name))
    print(text)
    return status


def compare(args: argparse.Namespace) -> int:
    from takeback import compare

    text, status = compare.compare(args.results, args.reference)
    print(text)
    return status


def publish(args: argparse.Namespace) -> int:
    from takeback import compare, experiment

    found = experiment.load(args.file, args.root)
    compare.publish(found, args.results, args.results / "runs", args.root / "workflow/reference" / found.name)
    return 0


def provenance_diff(args: argparse.Namespace) -> int:
    from takeback import provenance

    text, status = provenance.diff_files(args.first, args.second)
    print(text)
    return status


def leftovers(args: argparse.Namespace) -> int:
    from takeback import leftovers

    if args.remove:
        leftovers.remove()
    found = leftovers.leftovers()
    print("\n".join(found) or "nothing is left")
    return int(bool(found))


def slurm(args: argparse.Namespace) -> int:
    from takeback import slurm

    return slurm.run(args.command, args.nodes, args.cpus)


def parser() -> argparse.ArgumentParser:
    from takeback import backends

    top = argparse.ArgumentParser(
        prog="python -m takeback", description="Kill a training run, resume it, compare bits."
    )
    verbs = top.add_subparsers(metavar="VERB", required=True)

    def verb(function, help: str, *names: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(function.__name__.replace("_", "-"), help=help, description=help)
        sub.set_defaults(function=function)
        for name in names:
            sub.add_argument(name, type=Path)
        return sub

    def of_experiment(function, help: str) -> argparse.ArgumentParser:
        sub = verb(function, help, "file")
        sub.add_argument("--root", type=Path, default=ROOT, help="folder of the Snakefile")
        sub.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
        return sub

    of_experiment(cells, "List the cells of an experiment and what it predicts of each.")
    sub = verb(leg, "Run one leg (the rule of that name calls this).", "folder")
    sub.add_argument("--spec", required=True, help="what determines the leg, as JSON: see a leg.json")
    sub.add_argument(
        "--root", type=Path, default=ROOT, help="folder that files in the trainer's command are relative to"
    )
    sub.add_argument("--parent", type=int, help="pid of the workflow, which this must not outlive")
    sub = verb(pool, "Serve runs from a warm process (Snakemake starts this by itself).")
    sub.add_argument("--socket", type=int, required=True, help="descriptor of the listening socket")
    sub.add_argument("--parent", type=int, required=True, help="pid of the workflow, which this must not outlive")
    sub = verb(environment, "Make the environment of a backend, unless it is there, and say where.")
    sub.add_argument("name", choices=sorted(backends.environments()), help="name of its file in envs")
    sub.add_argument("--record", type=Path, help="write what was found, also that there is none; exit status 0 then")
    sub = of_experiment(verdicts, "Judge the cells of an experiment from the evidence of its legs.")
    sub.add_argument(
        "--partly", action="store_true", help="a budget has left legs out: cells that lack one are not-run"
    )
    sub.add_argument("--processes", type=int, help="how many judge at once; one a core if not given")
    of_experiment(page, "Draw the figures of an experiment, state what it ran on, write its page.")
    sub = verb(check, "Say whether all came out as predicted; exit status 1 if not.", "name")
    sub.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    verb(
        compare,
        "Compare results with published reference numbers: results/NAME workflow/reference/NAME.",
        "results",
        "reference",
    )
    of_experiment(publish, "Write the reference numbers of an experiment into workflow/reference.")
    verb(
        provenance_diff, "Show in which facts two provenance.json differ; exit status 1 if they do.", "first", "second"
    )
    sub = verb(leftovers, "List what runs have left on this machine; exit status 1 if there is anything.")
    sub.add_argument("--remove", action="store_true", help="remove control groups of supervisors that were killed")
    sub = verb(slurm, "Run a command beside a Slurm of this machine alone, which ends with it: -- snakemake …")
    sub.add_argument("--nodes", type=int, default=2, help="how many nodes it has; 2 if not given")
    sub.add_argument("--cpus", type=int, default=8, help="CPUs of a node, whatever this machine has; 8 if not given")
    sub.add_argument("command", nargs="+", help="the command and its words, after --")
    return top


def main() -> int:
    from takeback.errors import TakebackError

    args = parser().parse_args()
    try:
        return args.function(args)
    except TakebackError as error:
        print(f"takeback: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
