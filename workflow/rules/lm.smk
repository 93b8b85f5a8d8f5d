"""Language models: corpus -> counts, training -> evaluation, trace -> tables."""

from effstate.studies import LanguageStudy


rule corpus:
    input:
        upstream("corpus"),
    output:
        f"{RESULTS}/cohorts/corpus/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/corpus/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/corpus/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("corpus"),
    params:
        members=members("corpus"),
    script:
        "../scripts/cohort.py"


rule lmcounts:
    input:
        upstream("lmcounts"),
    output:
        f"{RESULTS}/cohorts/lmcounts/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/lmcounts/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/lmcounts/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("lmcounts"),
    params:
        members=members("lmcounts"),
    script:
        "../scripts/cohort.py"


rule lmtrain:
    input:
        upstream("lmtrain"),
    output:
        f"{RESULTS}/cohorts/lmtrain/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/lmtrain/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/lmtrain/{{study}}-{{cohort}}.tsv"
    # Training goes on from job to job; inside a job's allocation nothing is tried again.
    retries: lm_attempts(PIPELINE) if CLUSTER and workflow.is_main_process else 0
    threads: PIPELINE.project.threads
    resources:
        **job_resources("lmtrain"),
    params:
        members=members("lmtrain"),
    script:
        "../scripts/cohort.py"


rule lmeval:
    input:
        upstream("lmeval"),
    output:
        f"{RESULTS}/cohorts/lmeval/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/lmeval/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/lmeval/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("lmeval"),
    params:
        members=members("lmeval"),
    script:
        "../scripts/cohort.py"


rule lmtrace:
    input:
        upstream("lmtrace"),
    output:
        f"{RESULTS}/cohorts/lmtrace/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/lmtrace/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/lmtrace/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("lmtrace"),
    params:
        members=members("lmtrace"),
    script:
        "../scripts/cohort.py"


rule collect_language:
    input:
        finished_manifests("lmeval", "lm"),
        finished_manifests("lmtrace", "lm"),
    output:
        **{
            table: f"{RESULTS}/tables/{SCALE}/lm_{table}.parquet"
            for table in LanguageStudy.tables
        },
    log:
        f"{RESULTS}/logs/collect/{SCALE}-lm.log",
    resources:
        **small_job(),
    params:
        evaluations=finished_members("lmeval", "lm"),
        traces=finished_members("lmtrace", "lm"),
        recall=lambda wildcards: PIPELINE.study("lm").config.recall.model_dump(),
        version=STAGE_VERSIONS["collect"],
    script:
        "../scripts/collect_language.py"
