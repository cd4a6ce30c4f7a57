"""What has no modelled time is named wherever a step time is, and widens its interval."""

from __future__ import annotations

import pytest

from scaleproof.reports.descriptions.runs import out_of_memory
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.simulator.uncertainty.unmodelled import unmodelled
from tests.simulator.frameworks.scenarios import scenario

_CORES = ("cluster=cpu-2core", "strategy={kind: data_parallel, workers: 2}", "batch=8", "training.precision=fp32")


def test_a_remedy_that_offloads_says_what_it_costs() -> None:
    run = predict(scenario("model=llama-2-13b", "cluster=aws-g5", "batch=8", "training.zero=3", "training.recompute=full"))
    assert run.fit_by == "training.offload=[optimizer]"
    offloaded = timed(
        scenario("model=llama-2-13b", "cluster=aws-g5", "batch=8", "training.zero=3", "training.recompute=full", run.fit_by)
    )
    cost = f"({offloaded.step_time_s / run.step_time_s:.2g} × the step time)"
    assert cost in " ".join(out_of_memory(run).split())
    assert cost in run.facts()["memory"]


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


def test_the_upper_end_includes_twice_the_time_of_recurrences() -> None:
    hybrid = scenario("model=nemotron-h-8b", "cluster=dgx-h100", "batch=8", "framework=ideal", "training.recompute=full")
    (found,) = unmodelled(hybrid)
    assert "no kernel of a recurrence was measured" in found.note
    # products in chunks of 128 tokens and states are a small part of the step
    assert 0.01 < found.most_s / timed(hybrid).step_time_s < 0.2
    assert not unmodelled(scenario("model=llama-3-8b", "cluster=dgx-h100", "batch=8", "training.recompute=full"))


def test_untimed_layers_of_a_processor_are_named_and_the_upper_end_includes_their_calls() -> None:
    """A file of timed layers alone knows nothing of others; one with costs of operators knows all."""
    (found,) = unmodelled(scenario("model=mlp-mini", "model.hidden=64", *_CORES))
    assert "no times of" in found.note
    assert "scaleproof calibrate" in found.note
    # nine products and their activations, forward and backward, at most 100 us each
    assert 1e-3 < found.most_s < 10e-3
    assert not unmodelled(scenario("model=gpt-mini", *_CORES))
    assert not unmodelled(scenario("model=mlp-mini", "model.hidden=64", "compute=paced", *_CORES))
    kernels = "{generation: cpu, processors: 1, launch: 2 us, serial: {}}"
    assert not unmodelled(scenario("model=mlp-mini", "model.hidden=64", *_CORES, f"cluster.device.kernels={kernels}"))
