"""States what was run.

Needs: verdicts, and the provenance of each leg.
Makes: provenance.json and provenance.tsv: chip, dtype, shapes, bridge, and the comparisons actually run.
"""


rule provenance:
    input:
        "results/{experiment}/verdicts.parquet",
    output:
        json="results/{experiment}/provenance.json",
        tsv=report(
            "results/{experiment}/provenance.tsv",
            caption="../report/provenance.rst",
            category="Provenance",
            labels={"experiment": "{experiment}", "content": "what was run, on what"},
        ),
    log:
        "results/{experiment}/logs/provenance.log",
    params:
        sources=sources.digest("page"),
        file=file_of,
    message:
        "state the provenance of {wildcards.experiment}"
    shell:
        "exec python -m takeback provenance {params.file:q} --results results > {log} 2>&1"
