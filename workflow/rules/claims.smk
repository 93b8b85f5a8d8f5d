"""`claims`: the paper's statements, judged on the tables of every study that the scale runs."""

import os

from effstate.figures.registry import PACKAGE


def claim_sources():
    """The code that decides judgements, so that a changed claim is judged anew and nothing else is."""
    shared = [f"{name}.py" for name in ("correlation", "names", "tables")]
    own = sorted((PACKAGE / "analysis/claims").glob("*.py"))
    return [
        os.path.relpath(path)
        for path in [
            *own,
            *(PACKAGE / "analysis" / name for name in shared),
            PACKAGE / "markdown.py",
        ]
    ]


rule claims:
    input:
        tables=[path for study in STUDIES for path in table_paths(study)],
        sources=claim_sources(),
    output:
        claims=f"{RESULTS}/claims/{SCALE}/claims.parquet",
        parts=f"{RESULTS}/claims/{SCALE}/claim_parts.parquet",
        report=f"{RESULTS}/claims/{SCALE}/claims.md",
    log:
        f"{RESULTS}/logs/claims/{SCALE}.log",
    resources:
        **small_job(),
    params:
        cells=PIPELINE.scale.cells,
    script:
        "../scripts/claims.py"
