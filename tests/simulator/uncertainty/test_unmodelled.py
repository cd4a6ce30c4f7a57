"""What has no modelled time is named wherever a step time is, and widens its interval."""

from __future__ import annotations

import pytest

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions import comparisons, runs
from scaleproof.reports.descriptions.plan_sentences import optimality
from scaleproof.reports.descriptions.runs import out_of_memory
from scaleproof.simulator.analysis.compare import compare
from scaleproof.simulator.analysis.planner.record import record_of
from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.simulator.uncertainty.pairwise import ratio_interval
from scaleproof.simulator.uncertainty.unmodelled import unmodelled
from tests.simulator.frameworks.scenarios import scenario

ZERO_3 = "training.zero=3"
OPTIMIZER, BOTH = "training.offload=[optimizer]", "training.offload=[optimizer, parameters]"


def offloaded(*overrides: str) -> Scenario:
    return scenario(ZERO_3, *overrides)


def test_the_upper_end_includes_transfers_and_the_update_on_the_host() -> None:
    without, with_optimizer = offloaded(), offloaded(OPTIMIZER)
    parameters = without.model.parameters()
    assert not unmodelled(without)
    (found,) = unmodelled(with_optimizer)
    # of each of 8 GPUs' shards: gradients of 4 bytes there, parameters of 2 back; Adam moves 28 bytes of each parameter
    transfer_s, update_s = (4 + 2) * parameters / 8 / 25e9, 28 * parameters / 500e9
    assert found.most_s == pytest.approx(transfer_s + update_s, rel=1e-3)
    (both,) = unmodelled(offloaded(BOTH, "strategy.microbatches=4"))
    # each GPU's shard for two passes of each microbatch
    assert both.most_s == pytest.approx(found.most_s + 4 * 2 * 2 * parameters / 8 / 25e9, rel=1e-3)

    runs = [predict(one, interval=True) for one in (without, with_optimizer)]
    (low, high), (low_with, high_with) = (run.prediction_interval_s or (0.0, 0.0) for run in runs)
    assert runs[1].step_time_s <= runs[0].step_time_s
    assert high_with / runs[1].step_time_s > high / runs[0].step_time_s
    assert high_with == pytest.approx(runs[1].step_time_s * high / runs[0].step_time_s + found.most_s, rel=0.01)
    assert low_with / runs[1].step_time_s == pytest.approx(low / runs[0].step_time_s, rel=0.01)


def test_the_memory_bandwidth_of_hosts_counts_where_it_is_stated() -> None:
    (stated,), (assumed,) = (unmodelled(offloaded(OPTIMIZER, *more)) for more in ((), ("cluster.node.memory_bandwidth=",)))
    assert "100 GB/s (assumed) of a host's memory" in assumed.note
    assert "500 GB/s of a host's memory" in stated.note
    assert stated.most_s < assumed.most_s


def test_each_output_says_so() -> None:
    with_optimizer = offloaded(OPTIMIZER)
    run = predict(with_optimizer, interval=True)
    assert "is not modelled" in " ".join(run.warnings)
    assert "is not modelled" in " ".join(described(runs.describe(run)).split())

    comparison = compare(offloaded(), with_optimizer)
    assert "warning for B: training.offload" in " ".join(described(comparisons.describe(comparison)).split())
    # B may be slower by any share of what is not modelled
    modelled = ratio_interval(offloaded(), with_optimizer, comparison.ratio)
    (more,) = unmodelled(with_optimizer)
    assert comparison.speedup.high <= modelled.high
    assert modelled.low / (1 + more.most_s / run.step_time_s) <= comparison.speedup.low < modelled.low
    assert comparison.speedup.ahead < modelled.ahead


def test_a_plan_is_not_called_optimal() -> None:
    planned = plan(offloaded(OPTIMIZER), top=2)
    record = record_of(planned, "0")
    assert not planned.proved
    assert "optimal" not in optimality(record)
    assert "the best as far as times are modelled; training.offload: the time of" in optimality(record)
    assert record.best[0].high_s > record.best[0].step_time_s + min(one.most_s for one in unmodelled(planned.best[0].scenario))


def test_a_remedy_whose_time_is_not_modelled_is_called_so() -> None:
    run = predict(scenario("model=llama-2-13b", "cluster=aws-g5", "batch=8", ZERO_3, "training.recompute=full"))
    assert run.fit_by == "training.offload=[optimizer]"
    assert "(the time of offload is not modelled)" in " ".join(out_of_memory(run).split())
    assert "(the time of offload is not modelled)" in run.facts()["memory"]


def test_the_upper_end_includes_recomputation_that_weight_passes_repeat() -> None:
    """torch.distributed.pipelining repeats a block's forward pass for each of its four products with weights."""
    pipeline = "strategy={kind: hybrid, stages: 4, microbatches: 8, schedule: zb_h1, overlap: false}"
    whole = scenario(pipeline.replace("zb_h1", "1f1b"), "training.recompute=full", "framework=ideal")
    split = scenario(pipeline, "training.recompute=full", "framework=ideal")
    assert not unmodelled(whole)
    assert not unmodelled(scenario(pipeline, "framework=ideal"))
    (found,) = unmodelled(split)
    assert "recomputes again for each weight" in found.note
    job = job_of(split)
    block = next(layer for layer in job.layers if layer.can_be_recomputed)
    blocks = sum(layer.can_be_recomputed for layer in job.layers)
    again_s = job.layer_passes_s(block, job.samples_per_worker / 8)[2]
    assert found.most_s == pytest.approx(8 * blocks / 4 * 4 * again_s, rel=0.2)
    run = predict(split, interval=True)
    assert run.prediction_interval_s is not None
    assert run.prediction_interval_s[1] > run.step_time_s + found.most_s
    assert found.note in run.warnings
