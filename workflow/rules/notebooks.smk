"""`notebooks`: every notebook for which the scale has results, executed and as one HTML page each."""

import os
from pathlib import Path

from effstate.notebooks import NOTEBOOKS, notebooks_of


def notebook_tables(wildcards):
    """The tables that a notebook reads."""
    return [
        f"{RESULTS}/tables/{SCALE}/{table}.parquet"
        for table in NOTEBOOKS[wildcards.notebook].tables
    ]


def notebook_numbers(wildcards):
    """The numbers behind figures that a notebook reads."""
    return [
        f"{RESULTS}/figures/{SCALE}/{figure}.csv"
        for figure in NOTEBOOKS[wildcards.notebook].figures
    ]


def notebook_claims(wildcards):
    """The judged claims, for a notebook that shows them."""
    return rules.claims.output.claims if NOTEBOOKS[wildcards.notebook].claims else []


rule notebooks:
    input:
        [
            f"{RESULTS}/notebooks/{SCALE}/{notebook}.html"
            for notebook in notebooks_of(STUDIES)
        ],


rule notebook:
    input:
        notebook=os.path.relpath(
            Path(workflow.basedir) / "notebooks" / "{notebook}.ipynb"
        ),
        tables=notebook_tables,
        numbers=notebook_numbers,
        claims=notebook_claims,
        sources=package_files(
            "notebooks.py", "templates/notebook.html.j2", "templates/style.css.j2"
        ),
    output:
        executed=f"{RESULTS}/notebooks/{SCALE}/{{notebook}}.ipynb",
        page=f"{RESULTS}/notebooks/{SCALE}/{{notebook}}.html",
    log:
        f"{RESULTS}/logs/notebooks/{SCALE}-{{notebook}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/notebooks/{SCALE}-{{notebook}}.tsv"
    wildcard_constraints:
        notebook="|".join(NOTEBOOKS),
    resources:
        **small_job(),
    script:
        "../scripts/run_notebook.py"
