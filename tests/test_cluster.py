"""What jobs ask a cluster for: filling, growth, time limits, and how the profile names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from effstate import cluster as cluster_module
from effstate.cluster import (
    LEAST_MINUTES,
    check_cluster,
    device_of,
    job_megabytes,
    job_minutes,
    job_seconds,
    lm_attempts,
    where,
)
from effstate.config import ClusterConfig, ConfigError
from effstate.pipeline import Pipeline

from .conftest import ROOT


def paper(**keys: Any) -> Pipeline:
    return Pipeline.from_config({"scale": "paper", "cluster": keys}, ROOT)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return paper()


def test_jobs_hold_runs_up_to_their_hours_and_every_run_is_in_one(pipeline: Pipeline) -> None:
    cohorts = list(pipeline.cohorts("mqar", "train").values())
    cluster = pipeline.project.cluster
    assert cluster is not None
    several = [cohort for cohort in cohorts if len(cohort.requests) > 1]
    assert several
    for cohort in several:
        # Runs of one shape cost alike, but not the same: their mean decides how many fit.
        assert job_seconds(cluster, cohort.requests) < 2 * cluster.job_hours * 3600
    members = [request for cohort in cohorts for request in cohort.requests]
    assert len(members) == len(set(members)) == len(pipeline.requests("mqar", "train"))


def test_longer_jobs_are_fewer_and_runs_keep_their_digests(pipeline: Pipeline) -> None:
    longer = paper(job_hours=20)
    assert len(longer.cohorts("mqar", "train")) < len(pipeline.cohorts("mqar", "train"))
    assert longer.requests("mqar", "train") == pipeline.requests("mqar", "train")


def test_time_and_memory_grow_with_attempts_up_to_the_limit(pipeline: Pipeline) -> None:
    cluster = pipeline.project.cluster
    assert cluster is not None
    for stage in ("data", "train", "trace"):
        for cohort in pipeline.cohorts("mqar", stage).values():
            times = [job_minutes(cluster, cohort, attempt) for attempt in (1, 2, 3)]
            assert LEAST_MINUTES <= times[0] <= times[1] <= times[2] <= cluster.max_hours * 60
            assert job_megabytes(cohort, 2) == 2 * job_megabytes(cohort)


def test_larger_models_ask_for_more_memory(pipeline: Pipeline) -> None:
    by_width: dict[int, list[int]] = {}
    for cohort in pipeline.cohorts("mqar", "train").values():
        width = cohort.requests[0].config.model.width  # type: ignore[attr-defined]
        by_width.setdefault(width, []).append(job_megabytes(cohort))
    means = [sum(values) / len(values) for _, values in sorted(by_width.items())]
    assert means == sorted(means)
    assert means[0] < means[-1]


def test_a_language_model_may_take_as_many_jobs_as_its_hours_need(pipeline: Pipeline) -> None:
    assert lm_attempts(pipeline) > lm_attempts(paper(max_hours=240)) > 1


def test_gpus_and_partitions_go_to_the_stages_that_compute() -> None:
    config = ClusterConfig(partition="cpu", gpu_partition="gpu", account="lab", gpu_type="a100")
    assert where(config, None) == {"slurm_partition": "cpu", "slurm_account": "lab"}
    assert where(config, "data") == where(config, None)
    trained = where(config, "train")
    assert trained["slurm_partition"] == "gpu"
    assert (trained["gpu"], trained["gpu_model"]) == (1, "a100")
    assert "gpu" not in where(ClusterConfig(gpus=0), "train")
    assert where(None, "train") == {}
    assert device_of(None, "train") == "cpu"
    # Its resume point is written before the limit, not after.
    assert "--signal=TERM@" in where(config, "lmtrain")["slurm_extra"]


def test_the_profile_explains_every_key_and_holds_the_defaults() -> None:
    text = (ROOT / "profiles/slurm/cluster.yaml").read_text()
    given = yaml.safe_load(text)
    assert set(given) == {"cluster"}
    assert given["cluster"] == ClusterConfig().model_dump()


def answers(**printed: str | None) -> Any:
    """A stand-in for SLURM's commands: what each prints; None where it fails."""
    return lambda *command: printed.get(command[0])


ENFORCED = "AccountingStorageEnforce = associations,limits\n"


@pytest.mark.parametrize(
    ("keys", "printed", "sentence"),
    [
        pytest.param({}, {"sinfo": None}, "SLURM does not answer", id="silent"),
        pytest.param(
            {"gpu_partition": "gpus"},
            {"sinfo": "cpu\ngpu\n"},
            "gpu_partition = 'gpus': no such partition; the nearest known one is 'gpu'",
            id="partition",
        ),
        pytest.param(
            {},
            {"sinfo": "cpu\n", "scontrol": ENFORCED, "id": "me\n", "sacctmgr": "lab\nteam\n"},
            "account is missing, and this cluster requires one; yours are lab, team",
            id="no account",
        ),
        pytest.param(
            {"account": "labs"},
            {"sinfo": "cpu\n", "scontrol": ENFORCED, "id": "me\n", "sacctmgr": "lab\nteam\n"},
            "account = 'labs': not one of yours; the nearest known one is 'lab'",
            id="foreign account",
        ),
    ],
)
def test_what_the_cluster_would_refuse_is_said_before(
    keys: dict[str, Any],
    printed: dict[str, str | None],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(cluster_module, "_output", answers(**printed))
    demo = Pipeline.from_config({"scale": "demo", "cluster": keys}, ROOT)
    with pytest.raises(ConfigError, match=r"cluster\.yaml: ") as caught:
        check_cluster(demo)
    assert sentence in str(caught.value)


def test_a_single_account_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = {"sinfo": "cpu\n", "scontrol": ENFORCED, "id": "me\n", "sacctmgr": "lab\nlab\n"}
    monkeypatch.setattr(cluster_module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(cluster_module, "_output", answers(**printed))
    check_cluster(Pipeline.from_config({"scale": "demo", "cluster": {}}, ROOT))


def test_a_host_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="this host has no SLURM"):
        check_cluster(Pipeline.from_config({"scale": "demo", "cluster": {}}, ROOT))
