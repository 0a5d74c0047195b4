"""Writes the page.

Needs: verdicts, findings, figures, provenance.
Makes: results/EXPERIMENT/report.html, one file that opens from disk.
"""


rule page:
    input:
        "results/{experiment}/verdicts.parquet",
        "results/{experiment}/findings.tsv",
        "results/{experiment}/provenance.json",
        "results/{experiment}/figures/verdicts.svg",
        overlays_of,
        further_of,
    output:
        report(
            "results/{experiment}/report.html",
            caption="../report/report.rst",
            category="Page",
            labels={"experiment": "{experiment}", "content": "the whole page"},
        ),
    log:
        "results/{experiment}/logs/page.log",
    params:
        sources=sources.digest("page"),
        file=file_of,
    message:
        "write the page of {wildcards.experiment}"
    shell:
        "exec python -m takeback page {params.file:q} --results results > {log} 2>&1"
