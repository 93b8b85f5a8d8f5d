"""Claims about students that replace a teacher's layer (sections 5.2 and E.4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from effstate.analysis.claims.base import Evidence, Part, claim, settle
from effstate.analysis.claims.statistics import NOTHING, bootstrap, by_cluster, mean, ranks
from effstate.analysis.tables import last_epoch

TEACHER, STUDENT = "teacher_ess_entropy", "ess_entropy"
MIDDLE = "teacher_ess_mid_entropy"


@claim(
    "teacher-ess-predicts-distillation-loss",
    "The more ESS a teacher's layer has, the more a student of a given size loses.",
    figures=("6",),
    study="distillation",
    tables=("students",),
)
def teacher_ess_predicts_distillation_loss(evidence: Evidence) -> Iterator[Part]:
    """Per student TSS: Spearman correlation of teacher ESS and activation loss, resampling teachers."""
    students = evidence.finished("students", MIDDLE, "activation_loss")
    for tss, rows in students.groupby("tss"):
        columns = MIDDLE, "activation_loss"
        found = by_cluster(lambda s: ranks(s[0], s[1]), rows, "run", *columns)
        note = f"{len(rows)} students of {found.n} teachers"
        yield settle(f"student TSS {tss:g}", found, ">", note=note)


@claim(
    "low-ess-layer-distills-better",
    "Replacing the layer with more ESS costs more accuracy than replacing the one with less.",
    figures=("31",),
    study="distillation",
    tables=("students",),
)
def low_ess_layer_distills_better(evidence: Evidence) -> Iterator[Part]:
    """Per student TSS: accuracy lost with the higher-ESS layer minus that with the lower-ESS one."""
    students = evidence.finished("students", TEACHER, "accuracy", "teacher_accuracy")
    last = last_epoch(students)
    last = last.assign(lost=last["teacher_accuracy"] - last["accuracy"]).sort_values(TEACHER)
    for tss, rows in last.groupby("tss"):
        by_teacher = rows.groupby("run")["lost"]
        gaps = (by_teacher.last() - by_teacher.first())[by_teacher.size() > 1]
        found = bootstrap(mean, gaps.to_numpy(float), key=f"{tss:g}")
        yield settle(f"student TSS {tss:g}", found, ">")


@claim(
    "student-ess-approaches-teacher",
    "Larger students come closer to their teacher's ESS.",
    figures=("32",),
    study="distillation",
    tables=("students",),
)
def student_ess_approaches_teacher(evidence: Evidence) -> Iterator[Part]:
    """Mean |student ESS - teacher ESS|, largest student minus smallest, resampling teachers."""
    students = evidence.finished("students", TEACHER, STUDENT)
    gap = students.assign(gap=(students[STUDENT] - students[TEACHER]).abs())
    table = gap.pivot_table(index="run", columns="tss", values="gap").sort_index(axis=1)
    found = NOTHING
    if table.shape[1] > 1:
        both = table.iloc[:, [0, -1]].dropna().to_numpy(float)
        found = bootstrap(mean, np.diff(both, axis=1)[:, 0], key="teachers")
    yield settle("largest - smallest student", found, "<")
