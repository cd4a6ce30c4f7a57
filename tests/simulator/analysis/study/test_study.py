"""Studies: points are all combinations of values, except for axes that vary together, and equal `--set`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.analysis.study.study import read
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import NotFoundError, ScenarioError
from scaleproof.simulator.scenario.load import load

FIELDS = ["strategy.workers", "batch.per_worker", "cluster.network.latency", "steps", "training.seed"]


def study_of(axes: Any, **more: Any) -> Any:
    return {"scenario": "resnet50-ring-p100", "axes": axes, **more}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.booleans())
def test_points_are_all_combinations_without_repetition(counts: list[int], zipped: bool) -> None:
    together = zipped and len(counts) > 1
    if together:
        counts[-1] = counts[0]
    axes = {field: list(range(1, count + 1)) for field, count in zip(FIELDS, counts, strict=False)}
    study = read(study_of(axes, **({"zip": [[FIELDS[0], FIELDS[len(counts) - 1]]]} if together else {})))
    assert len(study) == np.prod(counts[:-1] if together else counts)
    places = study.places(np.arange(len(study)))
    assert len(np.unique(places, axis=0)) == len(study)
    assert (places < counts).all()
    if together:
        assert (places[:, 0] == places[:, -1]).all()


def test_a_point_equals_the_scenario_with_its_overrides() -> None:
    study = read(
        study_of({"strategy": {"cut": "model_parallel", "ring": "data_parallel"}, "strategy.workers": [2, 4]}),
        ["batch.per_worker=8"],
    )
    expected = load("resnet50-ring-p100", ["batch.per_worker=8", "strategy=data_parallel", "strategy.workers=4"])
    assert study.scenario([1, 1]) == expected
    # without side effects
    assert study.scenario([1, 0]).strategy.workers == 2
    with pytest.raises(ScenarioError, match="workers"):
        study.scenario([0, 1])


def test_a_point_is_named_by_its_values_on_the_axes() -> None:
    study = read(study_of({"strategy.workers": [2, 4], "cluster.network.latency": ["1 us", "5 us", "9 us"]}))
    assert study.places_of(4) == study.places(np.arange(len(study)))[4].tolist() == [1, 1]
    assert study.words_of(4) == "strategy.workers 4, cluster.network.latency 5 us"


@pytest.mark.parametrize("name", catalog.names("studies"))
def test_shipped_studies_are_valid(name: str) -> None:
    study = read(name)
    study.scenario(study.places_of(0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "scenario: resnet50-ring-p100\naxes:\n  cluster.netwrk.latency: [1 us]\n",
            ":3:3: axes.cluster.netwrk.latency: cluster",
        ),
        ("scenario: resnet50-ring-p100\naxes:\n  strategy.workers: []\n", ":3:3: axes.strategy.workers: has no values"),
        ("scenario: resnet50-ring-p100\naxes: {}\n", ":2:1: axes: missing; give fields"),
        ("scenario: resnet50-ring-p100\n", ":1:1: axes: missing"),
        ("axes:\n  strategy.workers: [1]\n", ":1:1: scenario: missing"),
        ("scenario: resnet5\naxes:\n  strategy.workers: [1]\n", ":1:1: scenario: no scenario is called 'resnet5'"),
        ("scenario: resnet50-ring-p100\naxis:\n  strategy.workers: [1]\n", ":2:1: axis: unknown key"),
        ("- 1\n", ":1:1: a study is a mapping"),
        (
            "scenario: resnet50-ring-p100\naxes:\n  strategy.workers: [1, 2]\n  steps: [1]\nzip: [[strategy.workers, steps]]\n",
            ":5:7: zip.0: zipped axes need the same number of values; strategy.workers has 2, steps has 1",
        ),
        ("scenario: resnet50-ring-p100\naxes:\n  steps: [1]\nzip: [[steps, x]]\n", ":4:7: zip.0: x is not an axis"),
        ("scenario: resnet50-ring-p100\naxes:\n  steps: [1]\nzip: steps\n", ":4:1: zip: expected lists"),
        ("scenario: {model: resnet50}\naxes:\n  steps: [1]\n", ":1:1: cluster: missing"),
    ],
)
def test_invalid_studies_are_rejected_with_their_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read(path)
    assert f"{path}{message}" in str(caught.value)


def test_too_many_points_are_rejected_before_they_are_created() -> None:
    with pytest.raises(ScenarioError, match="a study has at most"):
        read(study_of({field: {"from": 1, "to": 10_000, "points": 10_000} for field in ("steps", "training.seed")}))


def test_a_missing_study_is_named_in_the_error() -> None:
    with pytest.raises(NotFoundError, match="is a scenario, not a study"):
        read("resnet50-ring-p100")


def test_a_scenario_is_found_in_the_folder_of_its_study(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text((catalog.ROOT / "what-if" / "resnet50-ring-p100.yaml").read_text())
    (tmp_path / "study.yaml").write_text("scenario: base.yaml\naxes:\n  strategy.workers: [8]\n")
    assert read(tmp_path / "study.yaml").scenario([0]).strategy.workers == 8
