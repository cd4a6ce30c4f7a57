"""Streams of a captured step: what each does when, and where the step is when the host is at an event."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy.captured.streams import ClassStreams, class_streams
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.captured.records import data_parallel


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClassStreams, float]:
    """The streams of a step, and its predicted time."""
    path = Path(tmp_path_factory.mktemp("capture")) / "train.zip"
    data_parallel().write(path)
    scenario = load(path)
    assert isinstance(scenario.strategy, CapturedStrategy)
    (found,) = class_streams(scenario.strategy.script, job_of(scenario), 16)
    return found, predict(scenario, interval=False).step_time_s


def test_the_step_is_as_long_as_predicted(step: tuple[ClassStreams, float]) -> None:
    found, step_s = step
    assert found.step_s == pytest.approx(step_s)
    assert max(span.end_s for span in found.spans) <= step_s * (1 + 1e-9)


def test_kernels_wait_for_communication_before_the_optimizer(step: tuple[ClassStreams, float]) -> None:
    found, _ = step
    kernels = [span for span in found.spans if span.stream == "kernels"]
    (summed,) = (span for span in found.spans if span.stream == "DP communication")
    assert [span.phase for span in kernels] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert summed.start_s == pytest.approx(kernels[1].end_s)
    assert kernels[2].start_s == pytest.approx(summed.end_s)
    assert (summed.words, summed.size_bytes) == ("DP all-reduce", 32 * 2**20)


def test_places_in_time_follow_the_kernels(step: tuple[ClassStreams, float]) -> None:
    found, step_s = step
    assert found.reached_s[0] == 0.0
    assert found.reached_s[-1] == pytest.approx(step_s)
    assert (np.diff(found.reached_s) >= 0).all()
    starts_s = {span.start_s for span in found.spans if span.stream == "kernels"}
    assert starts_s <= set(found.reached_s.tolist())
