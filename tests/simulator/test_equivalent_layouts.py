"""The same layout has the same default framework and prediction, whichever kind of strategy describes it."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.planner.estimate.configurations import every
from scaleproof.simulator.analysis.planner.space import spaces
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

MODELS = {
    "BERT": ("model=bert-base", "cluster=gb200-nvl72", "training.precision=bf16"),
    "Llama": ("model=llama-2-7b", "model.layers=4", "cluster=dgx-h100", "training.precision=bf16", "training.optimizer=adam"),
    "ResNet": ("model=resnet50", "cluster=p100-25gbe"),
    "processors": ("model=gpt-mini", "cluster=netlab-500mbit"),
}
WORKERS = ("{kind: data_parallel, workers: 4}", "{kind: hybrid, workers: 4}")
STAGES = ("{kind: pipeline, stages: 4, microbatches: 4}", "{kind: hybrid, stages: 4, microbatches: 4}")
SINGLE = (
    "{kind: data_parallel}", "{kind: hybrid}", "{kind: pipeline}", "{kind: model_parallel}", "{kind: gather_average}",
    "{kind: local_sgd}",
)  # fmt: skip


def described(model: str, strategy: str, *more: str) -> Scenario:
    """A model trained by a strategy, by the default framework."""
    kept = ("framework=null", "training.zero=0", f"strategy={strategy}", "batch={per_worker: 4}")
    return load("resnet50-ring-p100", [*kept, *MODELS[model], *more])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategies", [WORKERS, STAGES, SINGLE], ids=["workers", "stages", "single"])
def test_one_layout_has_one_framework_and_one_step_time(model: str, strategies: tuple[str, ...]) -> None:
    first, *others = (described(model, strategy) for strategy in strategies)
    for other in others:
        assert other.framework == first.framework
        assert predict(other).step_time_s == pytest.approx(predict(first).step_time_s, rel=1e-9), other.strategy.kind


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_workers_alone_are_data_parallelism_whatever_they_shard_and_overlap(zero: int, overlap: str) -> None:
    more = (f"training.zero={zero}", f"strategy.overlap={overlap}")
    data_parallel, hybrid = (described("Llama", strategy, *more) for strategy in WORKERS)
    assert hybrid.framework == data_parallel.framework
    assert predict(hybrid).step_time_s == pytest.approx(predict(data_parallel).step_time_s, rel=1e-9)


@pytest.mark.parametrize("model", ["Llama", "ResNet"])
def test_the_planner_gives_each_layout_its_default_framework(model: str) -> None:
    scenario = described(model, WORKERS[0])
    planned = [found for found in map(every, spaces(scenario, 8)) if len(found)]
    degrees = ("tensor", "context", "stages", "workers", "zero")
    seen: dict[tuple[int, ...], str] = {}
    for found in planned:
        rows = found.distinct(*degrees).first.tolist()
        for row in rows:
            one = found.scenario(row)
            by_default = Scenario(**{name: getattr(one, name) for name in Scenario.model_fields if name != "framework"})
            assert one.framework.name == by_default.framework.name
            key = tuple(int(getattr(found, name)[row]) for name in degrees)
            assert seen.setdefault(key, one.framework.name) == one.framework.name
    assert len(set(seen.values())) > 1
