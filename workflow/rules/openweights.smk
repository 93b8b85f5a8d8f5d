"""Open-weight models: which can be had -> ESS along prompts -> tables."""

from effstate.studies import OpenWeightsStudy

MODELS = f"{RESULTS}/cohorts/weights/{SCALE}-models.json"


rule models:
    output:
        MODELS,
    log:
        f"{RESULTS}/logs/weights/{SCALE}-models.log",
    resources:
        **small_job(),
    params:
        models=lambda wildcards: {
            name: model.model_dump(mode="json")
            for name, model in PIPELINE.study("openweights").config.models.items()
        },
    script:
        "../scripts/open_models.py"


rule weights:
    input:
        MODELS,
    output:
        f"{RESULTS}/cohorts/weights/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/weights/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/weights/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("weights"),
    params:
        members=members("weights"),
    script:
        "../scripts/cohort.py"


rule collect_weights:
    input:
        finished_manifests("weights", "openweights"),
    output:
        **{
            table: f"{RESULTS}/tables/{SCALE}/openweights_{table}.parquet"
            for table in OpenWeightsStudy.tables
        },
    log:
        f"{RESULTS}/logs/collect/{SCALE}-openweights.log",
    resources:
        **small_job(),
    params:
        runs=finished_members("weights", "openweights"),
        figures=lambda wildcards: PIPELINE.study("openweights").config.figures,
        version=STAGE_VERSIONS["collect"],
    script:
        "../scripts/collect_weights.py"
