"""Judges the cells.

Needs: the evidence of all legs of an experiment, or of those that a budget leaves time for.
Makes: verdicts.parquet, verdicts.tsv, findings.tsv. A red verdict is data: it fails no job here.
"""


rule verdicts:
    input:
        evidence_of_all,
    output:
        parquet="results/{experiment}/verdicts.parquet",
        tsv=report(
            "results/{experiment}/verdicts.tsv",
            caption="../report/verdicts.rst",
            category="Verdicts",
            labels={"experiment": "{experiment}", "content": "verdict of each cell"},
        ),
        findings=report(
            "results/{experiment}/findings.tsv",
            caption="../report/findings.rst",
            category="Verdicts",
            labels={
                "experiment": "{experiment}",
                "content": "claims and whether they hold",
            },
        ),
    log:
        "results/{experiment}/logs/verdicts.log",
    threads: 8
    params:
        experiment=lambda wildcards: EXPERIMENTS[wildcards.experiment].digest,
        sources=sources.digest("checkers"),
        file=file_of,
        partly=lambda wildcards: ("--partly" if left_out(wildcards.experiment) else ""),
    message:
        "judge {wildcards.experiment}"
    shell:
        "exec python -m takeback verdicts {params.file:q} {params.partly} --results results "
        "--processes {threads} > {log} 2>&1"
