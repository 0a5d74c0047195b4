"""Takeback: kill a training run, resume it, and prove with bits that nothing was lost.

    snakemake --cores 8                    the default experiment, kill_resume
    snakemake --cores 8 NAME               the experiment in experiments/NAME.yaml
    snakemake --cores 8 lessons            what each fault does, an experiment each
    snakemake -n                           what would run

Data flows down this page: YAML → cells and legs → what there is time for → evidence → verdicts → page → check.
"""

from snakemake.utils import min_version

min_version("9.27")


report: "workflow/report/workflow.rst"


include: "workflow/rules/matrix.smk"
include: "workflow/rules/budget.smk"


rule all:
    input:
        [f"results/{name}/checked.txt" for name in DEFAULT],
    localrule: True


include: "workflow/rules/environment.smk"
include: "workflow/rules/needs.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/verdicts.smk"
include: "workflow/rules/page.smk"
include: "workflow/rules/check.smk"
include: "workflow/rules/onstart.smk"
