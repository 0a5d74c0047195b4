"""Says on the terminal how far the runs are: runs done, cells done, about how long is left."""


onstart:
    from takeback.progress import Progress

    Progress(EXPERIMENTS, Path("results/runs")).start()
