"""A tiny run's numbers. If they move, raise the stage's number in STAGE_VERSIONS and these with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from effstate.analysis.trace import TRACE_FILE, make_trace
from effstate.artifacts import STAGE_VERSIONS, read_json, read_tensors
from effstate.config import TraceConfig
from effstate.requests import trace_request
from effstate.training.trainer import train

from .test_trainer import EXECUTION, prepared, tiny_run

GOLDEN: dict[str, list[float]] = {
    "versions": [1, 1, 2],
    "gla": [2.6792, 2.1441, 2.2583],
    "la": [2.6246, 2.6506, 2.6589],
    "wla": [2.4789, 2.1773, 2.2114],
    "sa": [2.4543, 2.2295, 2.4006],
}
"""(data, train, trace) versions; featurizer to last validation loss and mean entropy-ESS per layer."""


@pytest.mark.parametrize("featurizer", ["gla", "la", "wla", "sa"])
def test_results_move_only_with_the_stage_versions(featurizer: str, tmp_path: Path) -> None:
    assert GOLDEN["versions"] == [STAGE_VERSIONS[stage] for stage in ("data", "train", "trace")]
    artifact, data = prepared(tmp_path, tiny_run(featurizer))
    train(artifact, data, EXECUTION)
    traced = artifact.store.artifact(trace_request(tiny_run(featurizer), TraceConfig(samples=2)))
    traced.begin()
    make_trace(traced, artifact, data, EXECUTION)
    tensors, _ = read_tensors(traced.checked(TRACE_FILE))
    found = [
        read_json(artifact.path("result.json"))["evaluations"][-1]["loss"],
        *(float(tensors[f"layer{layer}.ess"][-1, 0].mean()) for layer in range(2)),
    ]
    # Processors differ in the last bits, and training grows them: hence the loose comparison.
    assert found == pytest.approx(GOLDEN[featurizer], rel=2e-2)
