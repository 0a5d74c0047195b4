"""Starts what accompanies the jobs: the warm pool, and the lines that say how far the runs are.

No rule needs either. Without the pool (--config warm=false, jobs on other machines) runs start cold,
with the same bits. A dry-run starts nothing.
"""


onstart:
    from takeback.progress import Progress

    if config.get("warm", True):
        from takeback import pool

        pool.start()
    Progress(EXPERIMENTS, Path("results/runs")).start()
