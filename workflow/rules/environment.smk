"""Makes the environments of backends that can't share the suite's, where an experiment that is asked for has such legs.

Needs: envs/NAME.txt; or an interpreter of your own, which has what that lists: --config NAME_python=PATH.
Makes: results/envs/NAME.json, which says where it is and what it has, or why there is none: its legs are then not-run.

The environment itself lies in the user's cache folder, so that it is downloaded once.
"""


rule environment:
    output:
        "results/envs/{name}.json",
    log:
        "results/logs/environment/{name}.log",
    localrule: True
    params:
        file=lambda wildcards: environments.digest(wildcards.name),
        named=lambda wildcards: os.environ.get(environments.variable(wildcards.name)),
    message:
        "find or make the environment {wildcards.name}"
    shell:
        "python -m takeback environment {wildcards.name} --record {output} 2>&1 | tee {log}"
