"""Goes red last.

Needs: the page and everything before it.
Makes: checked.txt, one target a file in experiments/, named like it, and the target lessons: all but the long ones.
Exit status 1 if a verdict, a first step or a first state came out otherwise than predicted.
"""


rule check:
    input:
        "results/{experiment}/verdicts.parquet",
        "results/{experiment}/report.html",
    output:
        "results/{experiment}/checked.txt",
    log:
        "results/{experiment}/logs/check.log",
    localrule: True
    params:
        sources=sources.digest("checkers"),
    message:
        "check the verdicts of {wildcards.experiment} against the predictions"
    # The summary is for the terminal; the log keeps a copy.
    shell:
        "python -m takeback check {wildcards.experiment} --results results 2>&1 | tee {log}; "
        "cp {log} {output}"


rule lessons:
    input:
        [f"results/{name}/checked.txt" for name in LESSONS],
    localrule: True


for name in EXPERIMENTS:

    rule:
        name:
            name
        input:
            f"results/{name}/checked.txt",
        localrule: True
