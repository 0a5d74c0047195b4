"""Draws the figures.

Needs: verdicts and evidence.
Makes: figures/verdicts.svg (heat map) and figures/overlay-BACKEND-wWORLD.svg, one a backend and world;
figures/further-NAME.svg, one a name in the experiment's list of figures.
"""


rule heatmap:
    input:
        "results/{experiment}/verdicts.parquet",
    output:
        report(
            "results/{experiment}/figures/verdicts.svg",
            caption="../report/heatmap.rst",
            category="Verdicts",
            labels={"experiment": "{experiment}", "content": "heat map"},
        ),
    log:
        "results/{experiment}/logs/heatmap.log",
    params:
        sources=sources.digest("page"),
        file=file_of,
    message:
        "draw the verdicts of {wildcards.experiment}"
    shell:
        "exec python -m takeback heatmap {params.file:q} --results results > {log} 2>&1"


rule overlay:
    input:
        "results/{experiment}/verdicts.parquet",
    output:
        report(
            "results/{experiment}/figures/overlay-{backend}-w{world}.svg",
            caption="../report/overlay.rst",
            category="Loss overlays",
            labels={
                "experiment": "{experiment}",
                "backend": "{backend}",
                "world": "{world}",
            },
        ),
    log:
        "results/{experiment}/logs/overlay-{backend}-w{world}.log",
    params:
        sources=sources.digest("page"),
        file=file_of,
    message:
        "draw the losses of {wildcards.experiment}, {wildcards.backend}, world {wildcards.world}"
    shell:
        "exec python -m takeback overlay {params.file:q} --backend {wildcards.backend} --world {wildcards.world}"
        " --results results > {log} 2>&1"


rule figure:
    input:
        "results/{experiment}/verdicts.parquet",
    output:
        report(
            "results/{experiment}/figures/further-{figure}.svg",
            caption="../report/further.rst",
            category="Further figures",
            labels={"experiment": "{experiment}", "content": "{figure}"},
        ),
    log:
        "results/{experiment}/logs/further-{figure}.log",
    params:
        sources=sources.digest("page"),
        file=file_of,
    message:
        "draw the {wildcards.figure} of {wildcards.experiment}"
    shell:
        "exec python -m takeback figure {params.file:q} --figure {wildcards.figure} --results results > {log} 2>&1"
