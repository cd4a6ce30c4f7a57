"""No framework is faster than the one without software cost, and no mechanism but padding makes a step faster."""

from __future__ import annotations

from functools import cache

import pytest

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.frameworks import ABLATIONS, IDEAL, shipped
from scaleproof.simulator.frameworks.files import names
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.frameworks.scenarios import VARIED, scenario, trained_by
from tests.simulator.programs import hybrid
from tests.validator.verdicts import in_bulk

# Rounding.
_SAME = 1 + 1e-9


def seconds(one: Scenario) -> float:
    return timed(one).step_time_s


@cache
def varied(name: str) -> Scenario:
    return scenario(*VARIED[name])


NAMES = [*list(VARIED)[::3], *in_bulk(*(name for number, name in enumerate(VARIED) if number % 3))]


@pytest.mark.parametrize("name", NAMES)
def test_no_framework_is_faster_than_the_ideal_one(name: str) -> None:
    """The same strategy for all frameworks; what overlaps is given explicitly."""
    compared = 0
    for framework in map(shipped, names()):
        try:
            one = varied(name).copied(framework=framework)
        except FieldError:
            continue
        assert seconds(trained_by(one, shipped("ideal"))) <= seconds(one) * _SAME, framework.name
        compared += 1
    assert compared >= 2


# Whole sums may be faster: a switch that computes an all-reduce takes as long for it as for a reduce-scatter, and sums that
# follow passes do not slow them. Padded products are what a compiler adds in order to be faster, as are dispatchers.
COSTS = [name for name in ABLATIONS if name not in ("zero 1", "padding", "dispatchers")]


@pytest.mark.parametrize("mechanism", COSTS)
@pytest.mark.parametrize("name", NAMES)
def test_removing_a_mechanism_never_slows_a_step(name: str, mechanism: str) -> None:
    one = varied(name)
    for framework in {one.framework.name: one.framework, "nanotron": shipped("nanotron")}.values():
        try:
            own = one.copied(framework=framework)
        except FieldError:
            continue
        assert seconds(trained_by(own, framework.ablated(mechanism))) <= seconds(own) * _SAME


@pytest.mark.parametrize("mechanism", ABLATIONS)
def test_each_mechanism_changes_some_scenario(mechanism: str) -> None:
    """Otherwise an ablation would show nothing. All but padding and dispatchers make it slower."""
    model = "model.flash=false" if mechanism in ("kernels", "attention passes") else "model.flash=true"
    nanotron = "cluster=aws-p5", "framework=nanotron"
    mixture = "framework=megatron-core-2026", "cluster=eos-h100", "model=qwen3-30b-a3b", "model.layers=4", "batch=16"
    shown_by = {
        "rendezvous": (*nanotron, "strategy={kind: hybrid, tensor: 16}"),
        "waits": (*nanotron, "strategy={kind: hybrid, tensor: 8, stages: 2, microbatches: 64}"),
        "zero 1": (*nanotron, "strategy={kind: hybrid, workers: 8, tensor: 8}", "training.zero=1", "batch=8"),
        "stalls": (*nanotron, "strategy={kind: hybrid, workers: 192, stages: 2, microbatches: 2}", "batch=384"),
        "scatters": (
            "framework=gloo-cpu",
            "training.zero=3",
            "cluster=netlab-500mbit",
            "strategy.workers=4",
            "batch=4",
            "training.precision=fp32",
        ),
        "autocast": ("framework=pytorch-ddp", "cluster=eos-h100"),
        "padding": ("framework=torchtitan-compiled", "training.zero=3", "cluster=eos-h100", "model.vocabulary=50257"),
        "transposes": ("framework=pytorch-ddp", "training.precision=tf32", "cluster=dgx-a100", "model=resnet50"),
        "link contention": (
            "framework=megatron-core-0.12",
            "cluster=dgx-h100",
            "cluster.nodes=1",
            "strategy={kind: hybrid, tensor: 4, workers: 2, overlap: true}",
        ),
        "hooks": ("framework=hf-trainer-deepspeed", "training.zero=3", "model.hidden=512"),
        "experts": (*mixture, hybrid(workers=8, expert=8)),
        "dispatchers": (*mixture, hybrid(workers=16, expert=16)),
        "ring": ("framework=pytorch-fsdp2", "training.zero=3", "cluster=eos-h100", hybrid(workers=2, context=4)),
        "connections": ("framework=adaptdl", "cluster=aws-g4dn", "strategy.workers=8", "training.precision=fp16"),
        "rpc": (
            "framework=tensorflow-1-grpc",
            "cluster=dlperf-v100",
            "strategy={kind: parameter_server, workers: 16, servers: 2}",
            "training.precision=fp32",
        ),
        "tcp": ("framework=tensorflow-2-mirrored", "cluster=dlperf-v100", "strategy.workers=16", "training.precision=fp16"),
    }
    overlapped = "framework=pytorch-fsdp2", "training.zero=3", "cluster=eos-h100"
    given = shown_by.get(mechanism, overlapped)
    one = scenario(*given, *([] if "model=resnet50" in given else [model]))
    ablated = one.framework.ablated(mechanism)
    # dispatchers are options that the framework decides
    without = one.copied(framework=ablated) if mechanism == "dispatchers" else trained_by(one, ablated)
    with_s, without_s = seconds(one), seconds(without)
    assert with_s < without_s if mechanism in ("padding", "dispatchers") else without_s < with_s


def test_a_step_without_mechanisms_equals_the_ideal_framework() -> None:
    one = scenario("framework=pytorch-fsdp2", "training.zero=3")
    bare = one.framework
    for mechanism in ABLATIONS:
        bare = bare.ablated(mechanism)
    ideal = IDEAL.model_copy(update={"supports": bare.supports})
    assert seconds(trained_by(one, bare)) == pytest.approx(seconds(trained_by(one, ideal)))
