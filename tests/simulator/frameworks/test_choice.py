"""Choice of the framework of a scenario: the default, features that a named one lacks, and defaults of strategies."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common.errors import FieldError, ScenarioError
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.scenario.framework_choice import DECIDED
from tests.simulator.frameworks.scenarios import as_given, scenario, trained_by
from tests.simulator.programs import hybrid

MLP = "model={kind: mlp, layers: 8, inputs: 1024, hidden: 1024, outputs: 1024}"


@pytest.mark.parametrize(
    ("overrides", "framework"),
    [
        # what computes
        (("cluster=cpu-2core", "strategy.workers=2", "training.precision=fp32"), "gloo-cpu"),
        (("cluster=tpu-v4-pod",), "jax-maxtext"),
        # servers
        (("strategy={kind: parameter_server, workers: 4, servers: 4, placement: colocated}",), "tensorflow-1-servers"),
        (
            ("strategy={kind: parameter_server, workers: 4, servers: 4, placement: colocated}", "training.precision=fp8"),
            "ideal",
        ),
        # transformers in hybrids and pipelines whose gradients are not shared out
        ((hybrid(workers=4, tensor=2),), "megatron-core-0.12"),
        ((hybrid(workers=4, tensor=2), "training.zero=1"), "megatron-core-0.12"),
        ((hybrid(workers=4, tensor=2), "training.precision=fp8"), "nemo"),
        (("strategy={kind: pipeline, stages: 4, microbatches: 8}",), "megatron-core-0.12"),
        # by stage of ZeRO
        ((), "pytorch-ddp"),
        (("training.zero=1",), "deepspeed-zero"),
        (("training.zero=2",), "deepspeed-zero"),
        (("training.zero=3",), "pytorch-fsdp2"),
        ((hybrid(workers=4, tensor=2), "training.zero=3"), "pytorch-fsdp2"),
        # what the usual one does not support goes to the next that does
        (("training.precision=fp8",), "torchtitan-compiled"),
        (("training.precision=fp8", "training.zero=3"), "torchtitan-compiled"),
        ((hybrid(workers=4, tensor=2), "training.zero=2"), "torchtitan"),
        # all else
        ((MLP,), "pytorch-ddp"),
        ((MLP, hybrid(workers=2, stages=4, microbatches=8)), "pytorch-ddp"),
        (("strategy={kind: local_sgd, workers: 8, period: 4}",), "pytorch-ddp"),
        (("strategy={kind: gather_average, workers: 8}",), "pytorch-ddp"),
        (("strategy={kind: model_parallel, stages: 4}",), "pytorch-ddp"),
    ],
)  # fmt: skip
def test_the_default_framework_follows_from_the_scenario(overrides: tuple[str, ...], framework: str) -> None:
    one = scenario(*overrides)
    assert one.framework_is_default
    assert one.framework == shipped(framework)


@pytest.mark.parametrize(
    ("overrides", "message", "alternative"),
    [
        (
            ("framework=tensorflow-1-servers", "strategy={kind: pipeline, stages: 4, microbatches: 8}"),
            "tensorflow-1-servers does not support pipeline; use ",
            "megatron-core-0.12",
        ),
        (("framework=megatron-core-0.12", "training.zero=3"), "does not support zero 3; use ", "deepspeed-zero"),
        (("framework=pytorch-ddp", "training.precision=fp8"), "pytorch-ddp does not support fp8; use ", "jax-maxtext"),
        (
            ("framework=nemo", "strategy={kind: parameter_server, workers: 4, servers: 4, placement: colocated}"),
            "nemo does not support parameter server; use ",
            "tensorflow-1-servers",
        ),
        (
            ("framework=nemo", "cluster=cpu-2core", "strategy.workers=2", "training.precision=fp32"),
            "nemo does not support cpu; use ",
            "gloo-cpu",
        ),
        (("framework=megatron-lm-2021",), "has no flash attention; set model.flash=false", "a later framework"),
    ],
)  # fmt: skip
def test_unsupported_features_are_rejected_with_alternative_frameworks(
    overrides: tuple[str, ...], message: str, alternative: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(*overrides)
    (problem,) = str(caught.value).splitlines()
    assert problem.startswith(f"--set {overrides[0]}: framework: ")
    assert message in problem
    assert alternative in problem


def test_a_framework_sets_fields_that_are_not_given() -> None:
    decided = scenario("framework=megatron-core-0.12", hybrid(workers=8), "training.zero=1")
    strategy, defaults = decided.strategy, shipped("megatron-core-0.12").defaults
    assert isinstance(strategy, Hybrid)
    assert (strategy.overlap, strategy.overlap_gather, strategy.overlap_sends) == (True, True, True)
    assert defaults.bucket_parameters == 4e7
    assert strategy.bucket_bytes == 4e7 * 4, "gradients are summed in fp32"
    assert strategy.model_fields_set.isdisjoint(DECIDED), "so that another framework decides anew"


def test_given_fields_take_precedence_over_the_framework() -> None:
    given = scenario("framework=megatron-core-0.12", hybrid(workers=8, overlap="false", bucket="1 MiB"), "training.zero=1")
    assert isinstance(given.strategy, Hybrid)
    assert (given.strategy.overlap, given.strategy.bucket_bytes) == (False, 2**20)
    assert given.strategy.overlap_gather, "was not given"


def test_defaults_that_do_not_apply_are_ignored() -> None:
    """Without ZeRO no parameters are gathered, so the field would be rejected."""
    one = scenario("framework=megatron-core-0.12", hybrid(workers=8))
    assert isinstance(one.strategy, Hybrid)
    assert not one.strategy.overlap_gather


def test_a_changed_framework_sets_its_own_defaults() -> None:
    older, newer = (f"framework={name}" for name in ("megatron-lm-2022", "megatron-core-0.12"))
    more = (hybrid(workers=4, tensor=2), "model.flash=false")
    one = scenario(newer, *more)
    assert one.copied(framework=shipped("megatron-lm-2022")).strategy == scenario(older, *more).strategy
    assert one.strategy != scenario(older, *more).strategy
    assert one.copied(framework=shipped("megatron-lm-2022"), strategy=as_given(one.strategy)).strategy == one.strategy


def test_a_changed_copy_gets_its_own_default_framework() -> None:
    one = scenario()
    shared = one.copied(training=one.training.model_copy(update={"zero": 3}))
    assert (one.framework.name, shared.framework.name) == ("pytorch-ddp", "pytorch-fsdp2")
    assert shared.framework_is_default
    hybrid_one = one.copied(strategy=Hybrid(workers=4, tensor=2))
    assert hybrid_one.framework.name == "megatron-core-0.12"
    named = scenario("framework=pytorch-ddp")
    with pytest.raises(FieldError, match="pytorch-ddp does not support zero 3; use "):
        named.copied(training=one.training.model_copy(update={"zero": 3}))
    assert not trained_by(one, shipped("horovod")).framework_is_default
