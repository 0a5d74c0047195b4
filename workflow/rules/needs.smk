"""Says what a leg needs; makes no files.

Needs: LEGS and TIMED of matrix.smk.
Makes: the functions that the rule leg asks for its inputs, versions, hosts, cores and nodes.
"""


def parent_of(wildcards):
    """Evidence of the leg that a leg starts from, if there is one."""
    parent = LEGS[wildcards.leg].parent
    return evidence_of(parent.id) if parent else []


def environment_of(wildcards):
    """The record of the environment in which a leg runs, if that is not ours."""
    name = LEGS[wildcards.leg].environment
    return f"results/envs/{name}.json" if name else []


def versions_of(wildcards):
    """The versions that can change a bit of a leg: ours, or those that its environment's file lists."""
    name = LEGS[wildcards.leg].environment
    return environments.digest(name) if name else sources.environment()


def hosts_of(wildcards):
    """Digest of the file that names the hosts, for a leg that runs there: on others it is to be run again."""
    return (
        place.digest() if launcher_of(LEGS[wildcards.leg].launcher) == "hosts" else ""
    )


def cores_of(wildcards):
    """Cores of a leg: one a thread of each process, or all of them where nothing may run beside it."""
    leg = LEGS[wildcards.leg]
    cores = processes_of(leg.spec) * leg.hardware["threads"]
    # A submission of several runs asks for as many nodes as those beside one another need, together.
    alone = wildcards.leg in TIMED or (
        more_nodes_of(wildcards) and not workflow.local_exec
    )
    return max(cores, workflow.cores or 1) if alone else cores


def more_nodes_of(wildcards):
    """Nodes of a leg beside the first, where a scheduler gives them: one a host."""
    return launchers.machines(LEGS[wildcards.leg].spec) - 1
