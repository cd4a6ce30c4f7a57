"""Elasticities: shares of a step that follow from one number each, against theory and against predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

import scaleproof
from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions.sensitivity import describe
from scaleproof.simulator.analysis.sensitivity.sensitivity import Elasticity, Sensitivity, sensitivity
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import ONLY_COMPUTE

Make = Callable[..., Scenario]
AFTERWARDS = "strategy={kind: data_parallel, workers: 8, overlap: false}"
SERVERS = "strategy={kind: parameter_server, workers: 4, servers: 2}"
STRATEGIES = (
    AFTERWARDS,
    "strategy={kind: data_parallel, workers: 8}",
    "strategy={kind: pipeline, stages: 6, microbatches: 6}",
    "strategy={kind: hybrid, workers: 2, stages: 2, tensor: 4, microbatches: 4}",
    SERVERS,
)


def values(found: Sensitivity) -> dict[str, Elasticity]:
    return {one.name: one for one in (*found.cluster, *found.training)}


def test_compute_bound_throughput_depends_only_on_flops(small: Make) -> None:
    found = sensitivity(small(*ONLY_COMPUTE, "strategy.workers=8"))
    result = values(found)
    assert result["FLOP/s"].value == pytest.approx(1, abs=1e-6)
    assert found.bottleneck == "FLOP/s"
    for name in ("network bandwidth", "node link bandwidth", "memory bandwidth"):
        assert result[name].value == pytest.approx(0, abs=1e-6)
    assert found.rest == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "name", "field"),
    [
        ("{decode: 1 s, cores: 2}", "decoding of a sample", "input.decode"),
        ("{storage: {sample: 1 MB, bandwidth: 1 MB/s}, decode: 1 us}", "storage bandwidth", "input.storage.bandwidth"),
        ("{storage: {sample: 1 MB, bandwidth: 1 TB/s, latency: 100 s}}", "latency of a read", "input.storage.latency"),
        ("{augment: 1 s, cores: 2}", "augmentation of a sample", "input.augment"),
        ("{copied: 1 TB}", "link to the host", "cluster.node.host.link"),
    ],
)
def test_the_slower_part_of_loading_is_the_bottleneck_of_an_input_bound_job(
    small: Make, given: str, name: str, field: str
) -> None:
    found = sensitivity(small("strategy.workers=8", f"input={given}"))
    assert found.largest is not None
    assert (found.bottleneck, found.largest.field) == (name, field)
    assert found.largest.share == pytest.approx(1, abs=1e-6)
    assert found.rest == pytest.approx(0, abs=1e-6)
    assert f"bottleneck: {name}; it accounts for 100 % of the step" in described(describe(found))


def test_the_host_is_the_bottleneck_of_small_kernels() -> None:
    found = sensitivity(load("gpt2-small", ["cluster=dgx-h100", "strategy=ddp", "strategy.workers=8", "batch=8"]))
    assert found.largest is not None
    assert found.largest.field == "framework.host.kernel"
    assert found.rest < 0.05


def test_elasticities_equal_shares_of_compute_and_exposed_communication(small: Make) -> None:
    """Without overlap the numbers of the device follow from its share of the step, those of links from theirs."""
    scenario = small(AFTERWARDS)
    run, result = timed(scenario), values(sensitivity(scenario))
    device = sum(result[name].value or 0.0 for name in ("FLOP/s", "memory bandwidth"))
    assert device == pytest.approx(run.breakdown_s["compute"] / run.step_time_s, abs=2e-3)
    names = ("network bandwidth", "network latency", "node link bandwidth", "node link latency")
    links = sum(abs(result[name].value or 0.0) for name in names)
    assert links == pytest.approx(run.breakdown_s["exposed_communication"] / run.step_time_s, abs=2e-3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_elasticities_add_up_to_one(small: Make, strategy: str) -> None:
    """Times are homogeneous in slowdown factors: their elasticities add up to one (Euler)."""
    assert sensitivity(small(strategy)).rest == pytest.approx(0, abs=5e-3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bandwidth_never_slows_and_latency_never_speeds_up_a_step(small: Make, strategy: str) -> None:
    for name, one in values(sensitivity(small(strategy))).items():
        if one.value is not None and one.field.startswith("cluster."):
            assert one.value * (-1 if "latency" in name else 1) >= -1e-3
        if one.low is not None and one.high is not None and one.value is not None:
            assert one.low - 0.02 <= one.value <= one.high + 0.02


def test_parameters_that_do_not_apply_have_a_reason(small: Make) -> None:
    result = values(sensitivity(small("cluster.nodes=1", "cluster.network=null")))
    assert (result["network bandwidth"].value, result["network bandwidth"].how) == (None, "all ranks are on one node")
    assert result["network bandwidth"].says == "–"
    assert result["servers"].how == "there are no servers"
    single = values(sensitivity(small("cluster.node={devices: 1}")))
    assert single["node link bandwidth"].how == "no two ranks of a node communicate"
    assert single["network latency"].value is not None
    no_latency = values(sensitivity(small("strategy.workers=8", "cluster.network.latency=0 s")))
    assert no_latency["network latency"].how == "the cluster does not give it"


def test_integer_parameters_change_by_integers(small: Make) -> None:
    scenario = small(SERVERS, "batch={per_worker: 12}")
    result = values(sensitivity(scenario))
    assert (result["servers"].how, result["samples a worker"].how) == ("from 2 to 3", "from 11 to 13")
    more = timed(small(SERVERS, "batch={per_worker: 12}", "strategy.servers=3")).samples_per_s
    assert result["servers"].value == pytest.approx(math.log(more / timed(scenario).samples_per_s) / math.log(1.5))


def test_batch_changes_respect_microbatches_and_shares(small: Make) -> None:
    pipeline = values(sensitivity(small("strategy={kind: pipeline, stages: 2, microbatches: 6}")))
    assert pipeline["samples a step"].how == "from 42 to 54"
    one = values(sensitivity(small("batch={per_worker: 1}")))
    assert one["samples a worker"].how == "from 1 to 2"
    fixed = values(sensitivity(small("strategy={kind: data_parallel, workers: 4, shares: [9, 11, 14, 14]}")))
    assert fixed["samples a step"].value is None
    assert fixed["samples a step"].how.startswith("another batch is not valid")


def test_the_table_and_the_command_list_all_parameters(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    found = sensitivity(small(SERVERS))
    assert found.to_frame().loc["servers", "field"] == "strategy.servers"
    assert described(describe(found)).splitlines()[1] == "framework: tensorflow-1-servers, by default"
    assert described(describe(found)).splitlines()[-1].startswith("bottleneck: ")
    assert scaleproof.main(["sensitivity", "ring-2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["framework"], result["framework_is_default"]) == ("gloo-cpu", True)
    assert result["bottleneck"] in {one["name"] for one in result["cluster"]}
    assert scaleproof.main(["sensitivity", "ring-2", "--set", "strategy.workers=no"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_a_parameter_costs_5_percent_at_the_value_given(small: Make, strategy: str) -> None:
    scenario = small(strategy)
    found = values(sensitivity(scenario))
    own = timed(scenario).samples_per_s
    for name in ("FLOP/s", "network bandwidth", "network latency"):
        one = found[name]
        assert one.costs_at not in (None, "any")
        slower = timed(small(strategy, f"{one.field}={one.costs_at}")).samples_per_s
        assert slower / own == pytest.approx(0.95, abs=0.01)
