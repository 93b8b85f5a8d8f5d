"""effstate: from raw configuration to every figure. `snakemake figures --cores 2`."""


configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/lm.smk"
include: "workflow/rules/openweights.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/notebooks.smk"
include: "workflow/rules/status.smk"


localrules:
    figures,
    notebooks,
    plan,
    status,


onsuccess:
    say_where_the_figures_are()
