"""One rule and target per registered figure, and `figures` for all of them."""

import os

from effstate.figures.registry import PACKAGE, SECTIONS, sources


def available_tables(spec):
    """Tables of the figure's studies that this scale runs; panels of the others are drawn empty."""
    return [
        path
        for study in spec.studies
        if study in STUDIES
        for path in table_paths(study)
    ]


def figure_outputs(figure):
    """The three files of a figure."""
    return [
        f"{RESULTS}/figures/{SCALE}/{figure}.{kind}" for kind in ("png", "pdf", "csv")
    ]


def reported(spec):
    """The files of a figure, its picture in the report under its section of the paper."""
    picture, *others = figure_outputs(spec.id)
    heading = SECTIONS[spec.section]
    flagged = report(
        picture,
        caption="../report/figure.rst",
        category=heading if spec.beyond else f"Section {spec.section}: {heading}",
        # One label: Snakemake's page takes a second one with two values for a switch, and breaks.
        labels={"figure": f"{spec.number}: {spec.title}"},
    )
    return [flagged, *others]


rule figures:
    default_target: True
    input:
        [figure_outputs(figure) for figure in FIGURES],


for spec in FIGURES.values():

    rule:
        name:
            spec.id
        input:
            tables=available_tables(spec),
            sources=[os.path.relpath(PACKAGE / path) for path in sources(spec)],
        output:
            reported(spec),
        log:
            f"{RESULTS}/logs/figures/{SCALE}-{spec.id}.log",
        resources:
            **small_job(),
        params:
            figure=spec.id,
            spec=repr(spec),
            title=spec.title,
            caption=spec.caption,
            scale=PIPELINE.scale.description,
            cell=PIPELINE.scale.cells.get(spec.id),
            partial=PIPELINE.project.partial,
        script:
            "../scripts/figure.py"
