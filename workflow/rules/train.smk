"""Runs the legs.

Needs: the evidence of the parent leg, where there is one.
Makes: results/runs/LEG/: losses, ledger, digests, events as parquet; provenance; checkpoints; output.
Steps: one job a leg, shared by all cells and experiments that compare it.
"""


rule leg:
    input:
        parent_of,
        environment_of,
    output:
        multiext(
            "results/runs/{leg}/",
            "leg.json",
            "losses.parquet",
            "ledger.parquet",
            "digests.parquet",
            "events.parquet",
            "provenance.json",
        ),
    log:
        "results/logs/leg/{leg}.log",
    # The most telling cells first, where time is short.
    priority: lambda wildcards: plan().priority.get(wildcards.leg, 0)
    # A second try would turn a flaky result into a pass.
    retries: 0
    threads: cores_of
    resources:
        more_nodes=more_nodes_of,
    params:
        spec=lambda wildcards: LEGS[wildcards.leg].spec_json,
        sources=[sources.digest("trainer"), sources.digest("nemesis")],
        environment=versions_of,
        hosts=hosts_of,
    message:
        "run {wildcards.leg}"
    shell:
        "exec python -m takeback leg results/runs/{wildcards.leg} --spec {params.spec:q} --parent $PPID > {log} 2>&1"
