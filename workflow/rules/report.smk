"""`gallery`: every figure with its caption and the claims it bears on, on one page."""

import os

from effstate.figures.registry import PACKAGE


rule gallery:
    input:
        figures=[figure_outputs(figure) for figure in FIGURES],
        claims=rules.claims.output.claims,
        sources=[
            os.path.relpath(PACKAGE / path)
            for path in (
                "gallery.py",
                "templates/gallery.html.j2",
                "figures/registry.py",
            )
        ],
    output:
        f"{RESULTS}/gallery/{SCALE}.html",
    log:
        f"{RESULTS}/logs/gallery/{SCALE}.log",
    params:
        scale=PIPELINE.scale.description,
    script:
        "../scripts/gallery.py"
