"""`gallery`: every figure and claim on one page. `hyperparameters` and `report_pages`: what, with the
figures, `snakemake --report` holds (`effstate report` calls it)."""

import os

from effstate.figures.registry import PACKAGE
from effstate.hyperparameters import printed_tables, resolve


def package_files(*paths):
    """Files of the package as inputs: an edit of one makes the page anew."""
    return [os.path.relpath(PACKAGE / path) for path in paths]


def page(name):
    """A page of the report, in its section before the figures."""
    return report(
        f"{RESULTS}/report/{SCALE}/{name}.html",
        caption=f"../report/{name}.rst",
        category="Claims, settings and runs",
        labels={"page": name},
    )


rule gallery:
    input:
        figures=[figure_outputs(figure) for figure in FIGURES],
        claims=rules.claims.output.claims,
        sources=package_files(
            "gallery.py",
            "templates/gallery.html.j2",
            "templates/style.css.j2",
            "figures/registry.py",
        ),
    output:
        f"{RESULTS}/gallery/{SCALE}.html",
    log:
        f"{RESULTS}/logs/gallery/{SCALE}.log",
    resources:
        **small_job(),
    params:
        scale=PIPELINE.scale.description,
    script:
        "../scripts/gallery.py"


rule hyperparameters:
    input:
        package_files("hyperparameters.py", "data/printed_hyperparameters.yaml"),
    output:
        [
            f"{RESULTS}/tables/{SCALE}/{table}.{kind}"
            for table in printed_tables()
            for kind in ("csv", "md")
        ],
    log:
        f"{RESULTS}/logs/hyperparameters/{SCALE}.log",
    resources:
        **small_job(),
    params:
        rows=lambda wildcards: [
            resolve(PIPELINE, table) for table in printed_tables().values()
        ],
    script:
        "../scripts/hyperparameters.py"


rule report_pages:
    input:
        claims=[rules.claims.output.claims, rules.claims.output.parts],
        tables=rules.hyperparameters.output,
        sources=package_files(
            "report.py",
            "choices.py",
            "templates/tables.html.j2",
            "templates/style.css.j2",
        ),
    output:
        claims=page("claims"),
        settings=page("settings"),
        choices=page("choices"),
        runs=page("runs"),
    log:
        f"{RESULTS}/logs/report/{SCALE}.log",
    resources:
        **small_job(),
    script:
        "../scripts/report_pages.py"
