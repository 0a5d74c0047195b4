"""Chooses what there is time for; makes no files.

Needs: EXPERIMENTS; --config budget=10m (90s, 1h, 600), counted from the start of the command to its end.
Makes: to_run(name), the Experiment with the cells that are to run; plan().priority of their legs.

The instant at which runs end goes to the jobs by their environment. Without a budget nothing is left out.
"""

import functools

import psutil
from takeback import budget, clock

BEGUN = psutil.Process().create_time()
try:
    BUDGET = budget.seconds(config["budget"]) if "budget" in config else None
except budget.BudgetError as error:
    stop(error)

# What an earlier budget has cut off is to run now. Another call may be at work, and need it for its verdicts.
if ALONE:
    budget.forget(Path("results/runs"))


def needs(name):
    """Environments of their own in which legs of an experiment run."""
    return {leg.environment for leg in EXPERIMENTS[name].legs.values()} - {None}


# The short form of each question; what takes hours has a name that says so, and what would have to download an
# environment is to be asked for by its own.
LESSONS = [
    name
    for name in EXPERIMENTS
    if name not in DEFAULT
    and not name.endswith("_long")
    and all(environments.is_there(environment) for environment in needs(name))
]


def asked():
    """Names of the experiments that this call is to make: a target is one, a file of one, or all lessons."""
    targets = [str(target) for target in workflow.dag_settings.targets]
    if "lessons" in targets:
        targets += LESSONS
    return [
        name
        for name in EXPERIMENTS
        if any(target == name or f"results/{name}/" in target for target in targets)
    ] or DEFAULT


def can_run(leg):
    """Whether this machine has the devices of a leg, as far as it can be said without torch."""
    device = backends.get(leg.backend).DEVICE
    return device is None or os.path.exists(device)


@functools.cache
def plan():
    """What there is time for. Known once Snakemake knows its targets, so it is asked for by the rules."""
    if BUDGET is None or not workflow.is_main_process:
        return budget.Plan({}, {}, float("inf"))
    try:
        found = budget.plan(
            {name: EXPERIMENTS[name] for name in asked()},
            end=BEGUN + BUDGET,
            now=time.time(),
            slow=budget.slowness(BEGUN, LOADED),
            cores=workflow.cores,
            runs=Path("results/runs"),
            can_run=can_run,
        )
    except budget.BudgetError as error:
        stop(error)
    os.environ[clock.VARIABLE] = str(found.until)
    return found


def to_run(name):
    """An experiment with those of its cells that there is time for."""
    return plan().experiments.get(name, EXPERIMENTS[name])


def left_out(name):
    """How many cells of an experiment there is no time for."""
    return len(EXPERIMENTS[name].cells) - len(to_run(name).cells)
