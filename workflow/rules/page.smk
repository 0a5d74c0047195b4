"""Draws the figures, states what was run, writes the page.

Needs: verdicts, findings, and the evidence of each leg.
Makes: figures/verdicts.svg (heat map), figures/overlay-BACKEND-wWORLD.svg, one a backend and world, and
figures/further-NAME.svg, one a name in the experiment's list of figures; provenance.json and provenance.tsv: chip,
dtype, shapes, bridge, and the comparisons actually run; report.html, one file that opens from disk.

One job, since each of these takes less than the imports of them all.
"""


rule page:
    input:
        "results/{experiment}/verdicts.parquet",
        "results/{experiment}/findings.tsv",
    output:
        report(
            "results/{experiment}/report.html",
            caption="../report/report.rst",
            category="Page",
            labels={"experiment": "{experiment}", "content": "the whole page"},
        ),
        report(
            directory("results/{experiment}/figures"),
            patterns=["{figure}.svg"],
            caption="../report/figures.rst",
            category="Figures",
            labels={"experiment": "{experiment}", "content": "{figure}"},
        ),
        report(
            "results/{experiment}/provenance.tsv",
            caption="../report/provenance.rst",
            category="Provenance",
            labels={"experiment": "{experiment}", "content": "what was run, on what"},
        ),
        "results/{experiment}/provenance.json",
    log:
        "results/{experiment}/logs/page.log",
    params:
        sources=sources.digest("page"),
        file=file_of,
    message:
        "draw the figures of {wildcards.experiment} and write its page"
    shell:
        "exec python -m takeback page {params.file:q} --results results > {log} 2>&1"
