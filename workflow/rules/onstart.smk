"""Starts what accompanies the jobs: the warm pool, and the lines that say how far the runs are.

No rule needs either. Without the pool (--config warm=false, jobs on other machines) runs start cold,
with the same bits. A dry-run starts nothing.
"""


onstart:
    from takeback import pool
    from takeback.progress import Progress

    if pool.is_wanted(config):
        pool.start()
    asked = [
        name for name in workflow.dag_settings.targets if name in EXPERIMENTS
    ] or DEFAULT
    Progress(
        {name: EXPERIMENTS[name] for name in asked}, Path("results/runs")
    ).start()


onerror:
    print(
        "takeback: stopped. If a summary of verdicts stands above, nothing has crashed: a prediction failed, and the "
        "page says where. After Ctrl-C go on with the same command and --rerun-incomplete.",
        file=sys.stderr,
    )
