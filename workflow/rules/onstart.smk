"""Starts what accompanies the jobs: the warm pool, and the lines that say how far the runs are.

Ends a habit of Snakemake's: for its limit of jobs a second it looks for work again a second after each look, and
each job that ends adds a look of its own (JobScheduler.schedule, 9.27). After 300 jobs it does little else, which takes
more CPU than all verdicts and pages. Jobs on this machine need no such limit.

No rule needs either. Without the pool (--config warm=false) runs start cold, with the same bits. Where jobs run on other
machines, each submission of several runs has a pool there. A dry-run starts nothing.
"""

# A submission, on its node, where Snakemake runs no hooks and is told its jobs as leg:leg=ID.
SUBMITTED = [
    word.removeprefix("leg:leg=") for word in sys.argv if word.startswith("leg:leg=")
]
if workflow.remote_exec and len(SUBMITTED) > 1:
    from takeback import pool

    if pool.is_wanted(config):
        pool.start_all({LEGS[leg].environment for leg in SUBMITTED} - {None})


onstart:
    from takeback import pool
    from takeback.progress import Progress

    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None
        if pool.is_wanted(config):
            pool.start_all({one for name in asked() for one in needs(name)})
    Progress({name: to_run(name) for name in asked()}, Path("results/runs")).start()
    for name in asked():
        if left_out(name):
            print(
                f"takeback: {name}: {left_out(name)} of {len(EXPERIMENTS[name].cells)} cells left out for the budget",
                file=sys.stderr,
            )


onerror:
    print(
        "takeback: stopped. If a summary of verdicts stands above, nothing has crashed: a prediction failed, and the "
        "page says where. After Ctrl-C go on with the same command and --rerun-incomplete.",
        file=sys.stderr,
    )
