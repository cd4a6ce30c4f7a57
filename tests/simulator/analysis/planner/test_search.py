"""The planner's best is the best configuration by prediction."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scaleproof import main
from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions.plan_sentences import risk
from scaleproof.reports.descriptions.plan_settings import settings
from scaleproof.reports.descriptions.plans import describe
from scaleproof.simulator.analysis.planner.estimate import every, memory_bytes
from scaleproof.simulator.analysis.planner.objectives import OBJECTIVES
from scaleproof.simulator.analysis.planner.record import record_of
from scaleproof.simulator.analysis.planner.search import PlanResult, plan
from scaleproof.simulator.analysis.planner.space import space, spaces
from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.load import build, load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import common_error_share
from tests.validator.verdicts import in_bulk

SMALL = ("strategy={kind: hybrid, workers: 8, overlap: true}", "batch=64")


def small(*overrides: str) -> Scenario:
    return load("resnet50-ring-p100", [*SMALL, *overrides])


def test_named_schedules_are_planned() -> None:
    """1F1B comes along, which ranks have that are alone in their pipelines."""
    found = plan(small("batch=8"), 8, top=2, schedules=("zb_v",)).configurations
    assert {found.row(row)["schedule"] for row in range(len(found))} == {"1f1b", "zb_v"}
    with pytest.raises(InputError, match="--schedules zb_1p: give all, or some of 1f1b,interleaved_1f1b"):
        plan(small(), 8, schedules=("zb_1p",))


@pytest.mark.full
def test_all_schedules_are_more_than_the_usual_ones() -> None:
    few = small("batch=8")
    assert len(plan(few, 8, top=1, schedules=("all",)).configurations) > len(plan(few, 8, top=1).configurations)


def test_each_framework_of_a_plan_decides_what_it_decides_of_training() -> None:
    """DistributedDataParallel trains in 16 bits by autocast, the other defaults do not."""
    text = (
        "{model: llama-2-7b, cluster: a100-64, batch: 128, strategy: {kind: hybrid, workers: 64}, training: {precision: bf16}}"
    )
    scenario = build(yaml_file.parse(text, "text.yaml"), Path("text.yaml"))
    by_framework = {one.scenario.framework.name: one for one in spaces(scenario, 8)}
    assert by_framework["pytorch-ddp"].scenario.training.autocast
    for one in by_framework.values():
        found = every(replace(one, samples=(1,), schedules=("1f1b",)))
        assert one.scenario.training.autocast == found.scenario(0).training.autocast
        assert bool(one.scenario.training.autocast) == one.scenario.framework.autocast.usual


@lru_cache
def planned() -> PlanResult:
    return plan(small(), 8, top=4)


@pytest.mark.full
def test_the_best_plan_is_the_best_of_all_predicted_configurations() -> None:
    scenario = small()
    found = every(space(scenario, 8))
    fitting = np.flatnonzero(memory_bytes(found) <= scenario.cluster.device.memory_bytes)
    few = found.take(np.random.default_rng(0).choice(fitting, 120, replace=False))
    fastest_s = min(timed(few.scenario(row)).step_time_s for row in range(len(few)))
    assert planned().proved
    assert planned().best[0].run.step_time_s <= fastest_s * (1 + 1e-9)


def test_choices_are_sorted_and_fit_in_memory() -> None:
    best = planned().best
    assert [choice.value for choice in best] == sorted(choice.value for choice in best)
    assert all(choice.memory_bytes <= planned().capacity_bytes for choice in best)
    assert len({choice.row for choice in best}) == len(best) == 4


def test_no_configuration_dominates_the_pareto_front() -> None:
    found, front = planned(), planned().front
    seconds, memory = found.expected_s[list(front)], found.memory_bytes[list(front)]
    assert (np.diff(seconds) >= 0).all()
    assert (np.diff(memory) < 0).all()


def test_less_memory_never_gives_a_faster_plan() -> None:
    lean = plan(small(), 8, memory=planned().best[0].memory_bytes * 0.8, top=1)
    assert lean.best[0].memory_bytes < planned().best[0].memory_bytes
    assert lean.best[0].run.step_time_s >= planned().best[0].run.step_time_s


@pytest.mark.parametrize("objective", OBJECTIVES[1:3])
def test_other_objectives_need_their_prices(objective: Any) -> None:
    scenario = small()
    node = scenario.cluster.node.model_copy(update={"price_USD_per_s": None, "power_W": None})
    poor = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"node": node})})
    with pytest.raises(FieldError, match=f"and {objective} needs it; give a"):
        plan(poor, 8, objective)


@pytest.mark.full
def test_energy_objective_returns_the_least_energy_first() -> None:
    found = plan(small("cluster.node.power=3 kW", "cluster.node.idle_power=1 kW", "batch=8"), 2, "energy", top=2)
    first, second = (choice.run.energy_J for choice in found.best)
    assert first is not None
    assert second is not None
    assert first["per_step"] <= second["per_step"]


def test_tokens_per_dollar_is_rejected_for_image_models() -> None:
    with pytest.raises(InputError, match="models have no tokens; plan for cost"):
        plan(small("cluster.node.price=10 USD/h"), 8, "tokens-per-dollar")


@pytest.mark.full
def test_a_model_that_fits_no_configuration_gives_an_error() -> None:
    with pytest.raises(InputError, match="nothing fits: the smallest"):
        plan(small(), 8, memory=1e6)


def test_rank_counts_that_do_not_divide_the_batch_are_rejected() -> None:
    with pytest.raises(InputError, match="no configuration trains 64 samples"):
        plan(small("cluster.nodes=100"), 97)


def test_a_batch_beyond_the_largest_total_is_refused() -> None:
    servers = "strategy={kind: parameter_server, workers: 8, servers: 2}"
    with pytest.raises(FieldError, match="8,000,000,000 samples per step; plans keep this total"):
        plan(small(servers, "batch={per_worker: 1000000000}"))


def test_plan_uncertainty_follows_from_the_clusters_uncertainty() -> None:
    found = planned()
    uncertainty = found.configurations.response(np.array([choice.row for choice in found.best]))
    low, high = uncertainty.interval(0)
    assert low < 1 < high
    # of two identical steps neither is sure to be faster
    assert uncertainty.faster(0, 0, 1.0, 1.0) == pytest.approx(0.5)
    assert uncertainty.faster(0, 1, 10.0, 0.5) > 0.99
    assert common_error_share(found.best[0].scenario, found.best[0].scenario) == 1.0


def test_the_plan_is_printed_as_text_and_json() -> None:
    found = planned()
    record = record_of(found, "0")
    text, data = described(describe([record])), record.to_dict()
    assert "optimal: no configuration that fits is faster (by bounds, replay and prediction)" in text
    assert "CP 1, EP 1" in text
    assert {"configurations", "estimate_seconds", "replayed", "best", "front", "too_large"} <= data.keys()
    assert data["best"][0]["low_s"] < data["best"][0]["step_time_s"] < data["best"][0]["high_s"]


@pytest.mark.full
def test_a_plan_that_waits_for_samples_says_what_limits_them() -> None:
    record = record_of(plan(small("input={decode: 10 s, cores: 2}"), 8, top=1), "0")
    text = " ".join(described(describe([record])).split())
    assert re.search(r"8 GPUs: input-bound, No. 1 waits for samples in \d+ % of a step; limited by decoding: ", text)
    assert not record_of(planned(), "0").input


def test_the_plan_names_its_frameworks() -> None:
    found = planned()
    record = record_of(found, "0")
    text = described(describe([record]))
    assert record.framework_is_default
    assert set(record.frameworks) == {"pytorch-ddp", "torchtitan", "deepspeed-zero", "pytorch-fsdp2"}
    assert {row.configuration["framework"] for row in record.best} <= set(record.frameworks)
    assert "\nframeworks: pytorch-ddp, torchtitan, deepspeed-zero, pytorch-fsdp2, by default\n" in text
    assert f"\n  framework: {found.best[0].scenario.framework.name}\n  strategy: " in text


def test_only_named_frameworks_are_considered(capsys: pytest.CaptureFixture[str]) -> None:
    named = plan(small(), 8, top=8, frameworks=[shipped("pytorch-ddp"), shipped("ideal")])
    assert {part.space.scenario.framework.name for part in named.configurations.parts[:2]} == {"pytorch-ddp", "ideal"}
    assert not named.framework_is_default
    assert named.best[0].scenario.framework.name == "ideal"
    command = ["plan", "resnet50-ring-p100", "--gpus", "8", "--frameworks"]
    assert main([*command, "torchtitann"]) == 2
    assert capsys.readouterr().err.startswith("no framework is called 'torchtitann'; did you mean")
    assert main([*command, "torchtitan", "--strategies", "parameter_server"]) == 2
    assert (
        "torchtitan does not support parameter server; use tensorflow-1-grpc, tensorflow-1-servers" in capsys.readouterr().err
    )


def test_of_configurations_that_differ_in_buckets_or_rank_order_alone_the_best_is_returned() -> None:
    found = plan(small("framework=pytorch-ddp"), 8, top=30)
    kinds = [found.configurations.kind(choice.row) for choice in found.best]
    assert len(set(kinds)) == len(kinds)
    for choice, kind in zip(found.best[:2], kinds, strict=False):
        rows = [row for row in range(len(found.configurations)) if found.configurations.kind(row) == kind]
        assert len(rows) > 1
        fastest_s = min(timed(found.configurations.scenario(row)).step_time_s for row in rows)
        assert choice.run.step_time_s <= fastest_s * (1 + 1e-3)


def test_the_runner_up_has_other_degrees_of_model_parallelism() -> None:
    found = plan(load("llama-2-7b-fsdp-a100", ("batch=64",)), 8, top=2)
    assert found.runner_up is not None
    degrees = [found.configurations.degrees[choice.row] for choice in (*found.best, found.runner_up)]
    assert degrees[-1] != degrees[0]
    assert found.runner_up.value >= found.best[0].value


SERVERS = ("batch=64", "strategy.workers=8", "strategy.servers=2")


@lru_cache
def served(*overrides: str) -> PlanResult:
    return plan(load("resnet50-servers-p100", [*SERVERS, *overrides]), 8, top=3, servers=3, strategies=("parameter_server",))


@pytest.mark.full
@pytest.mark.parametrize("overrides", [("strategy.overlap=true",), *in_bulk(((),))])
def test_the_best_servers_are_the_best_of_all_predictions(overrides: tuple[str, ...]) -> None:
    found = served(*overrides)
    fastest_s = min(timed(found.configurations.scenario(row)).step_time_s for row in range(len(found.configurations)))
    assert found.proved
    assert found.best[0].run.step_time_s == pytest.approx(fastest_s, rel=1e-9)


@lru_cache
def both() -> PlanResult:
    return plan(load("resnet50-servers-p100", SERVERS), 8, top=1)


@pytest.mark.full
def test_server_strategies_are_ranked_with_all_others() -> None:
    assert both().configurations.has_servers().any()
    assert not both().configurations.has_servers().all()
    assert both().best[0].run.step_time_s <= served().best[0].run.step_time_s
    # without servers in the scenario or the arguments none are planned
    assert not planned().configurations.has_servers().any()


def test_times_are_those_of_the_rows_in_the_given_order() -> None:
    found = both().configurations
    rows = np.array([len(found) - 1, 3, len(found) - 5, 3])
    times = found.times(rows)
    assert times.least_s == pytest.approx(found.times(np.arange(len(found))).least_s[rows], rel=5e-3)
    assert (times.least_s <= [timed(found.scenario(row)).step_time_s * (1 + 1e-9) for row in rows.tolist()]).all()


def test_costs_include_server_machines() -> None:
    priced = ("cluster.node.price=10 USD/h", "strategy.overlap=true")
    scenario = load("resnet50-servers-p100", [*SERVERS, *priced])
    found = plan(scenario, 8, "cost", top=20, servers=4, strategies=("parameter_server",))
    assert found.proved
    costs = [choice.run.cost_USD["per_step"] for choice in found.best if choice.run.cost_USD is not None]
    assert len(costs) == 20
    assert costs == sorted(costs)
    # two machines of workers, and one for each dedicated server
    rows = [found.configurations.row(choice.row) for choice in found.best]
    hours = [choice.run.step_time_s / 3600 for choice in found.best]
    nodes = [2 + (row["servers"] if row["placement"] == "dedicated" else 0) for row in rows]
    assert costs == pytest.approx([10 * hour * count for hour, count in zip(hours, nodes, strict=True)])


def test_the_best_servers_are_reported_as_scenario_fields() -> None:
    found = served("strategy.overlap=true")
    record = record_of(found, "0")
    text = described(describe([record]))
    assert "(by bounds, replay and prediction)" in text
    assert "a step by number of dedicated servers (estimated): " in text
    result = yaml.safe_load("\n".join(record.fields))
    chosen = f"strategy={json.dumps(result['strategy'])}", f"training={json.dumps(result['training'])}"
    again = load("resnet50-servers-p100", [*SERVERS, *chosen])
    assert timed(again).step_time_s == pytest.approx(found.best[0].run.step_time_s, rel=1e-9)
    assert record.best[0].strategy == "parameter_server"


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(InputError, match="--strategies ring: give some of hybrid,parameter_server"):
        plan(small(), 8, strategies=("ring",))


def test_the_command_adds_nodes_for_servers(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--set", "batch=256", "--gpus", "64", "--servers", "3", "--strategies", "parameter_server", "--top", "1"]
    assert main(["plan", "resnet50-servers-p100", *names]) == 0
    assert " with 3\n" in capsys.readouterr().out.partition("dedicated servers (estimated)")[2]


@lru_cache
def tight() -> PlanResult:
    """A plan on devices that have hardly more memory than what the fastest configuration needs."""
    memory_bytes = 1.05 * planned().best[0].memory_bytes
    return plan(small(f"cluster.device.memory={memory_bytes / 2**30} GiB", "cluster.device.usable_memory=null"), 8, top=2)


def test_the_best_plan_fits_surely_and_a_faster_risky_one_is_named() -> None:
    best, riskier = tight().best[0], tight().riskier
    assert best.fits_probability is not None
    assert best.fits_probability >= 0.9
    assert riskier is not None
    assert riskier.fits_probability is not None
    assert riskier.fits_probability < 0.9
    assert riskier.value < best.value
    predicted = predict(riskier.scenario, interval=False)
    assert (predicted.step_time_s, predicted.fits_probability) == (riskier.value, pytest.approx(riskier.fits_probability))
    record = record_of(tight(), "0")
    assert record.riskier is not None
    assert record.riskier.step_time_s == riskier.value
    (sentence,) = risk(record)
    assert sentence.startswith("No. 1 would be ")
    assert " % faster as DP" in sentence
    assert "which fits with a probability of " in sentence
    assert sentence in " ".join(described(describe([record])).split())
    assert planned().riskier is None


def test_where_nothing_fits_surely_what_fits_most_probably_is_ranked() -> None:
    least_bytes = float(planned().memory_bytes.min())
    found = plan(
        small(f"cluster.device.memory={1.05 * least_bytes / 2**30} GiB", "cluster.device.usable_memory=null"), 8, top=2
    )
    assert found.room.fits is not None
    assert 0.05 <= found.room.fits < 0.9
    assert all(one.fits_probability is not None and one.fits_probability >= found.room.fits for one in found.best)
    record = record_of(found, "0")
    text = " ".join(described(describe([record])).split())
    assert "not called optimal, as No. 1 fits with a probability of" in text
    assert " % (risky)" in text
    sentence, *_ = risk(record)
    assert sentence.startswith("no configuration fits with a probability of 90 %; these fit with one of at least ")


def test_where_nothing_fits_states_are_offloaded() -> None:
    found = plan(load("llama-2-7b", ("cluster=aws-g5", "batch=16")), 4, top=1)
    best = found.best[0]
    assert best.scenario.training.offload == ("optimizer",)
    assert best.run.communication
    assert layout(found.configurations.row(best.row)).endswith("offload optimizer")
    columns, _ = settings([found.configurations.row(best.row)])
    assert {column.head: column.cells for column in columns} == {"offload": ["optimizer"]}
    # estimates of what is offloaded are close, and their bounds are bounds
    expected_s, least_s = (float(times[0]) for times in found.configurations.times(np.array([best.row])))
    assert least_s <= best.run.step_time_s
    assert expected_s == pytest.approx(best.run.step_time_s, rel=0.1)


@pytest.mark.full
def test_where_the_scenario_offloads_plans_do() -> None:
    given = load("llama-2-7b", ("cluster=aws-g5", "batch=16", "training.zero=3", "training.offload=[optimizer, parameters]"))
    planned = plan(given, 4, top=1).best[0].scenario
    assert (planned.training.zero, planned.training.offload) == (3, ("optimizer", "parameters"))


@pytest.mark.full
def test_what_does_not_fit_with_states_on_hosts_gives_an_error() -> None:
    tiny = "cluster.device.memory=2 GiB", "cluster.device.usable_memory=null"
    with pytest.raises(InputError, match=r"with optimizer and parameters on hosts; give more ranks"):
        plan(load("llama-2-7b", ("cluster=aws-g5", "batch=1", *tiny)), 1)
    with pytest.raises(InputError, match=r"of a node's host memory, which has 16.0 GiB"):
        plan(load("llama-2-7b", ("cluster=aws-g5", "batch=16", "cluster.node.host.memory=16 GiB")), 4)


def test_the_best_configurations_are_returned_as_a_table() -> None:
    table = planned().to_frame()
    assert table["step_time_s"].is_monotonic_increasing
    assert (table["workers"] * table["stages"] * table["tensor"] * table["context"] == 8).all()


@pytest.mark.full
@pytest.mark.parametrize("batches", ["padded", "grouped", "packed"])
def test_the_best_plan_for_samples_of_different_lengths_is_the_best_of_all_predictions(batches: str) -> None:
    """Padding depends on the samples of a microbatch, and so do estimates and their bounds."""
    lengths = f"batch.lengths={{distribution: lognormal, mean: 700, batches: {batches}}}"
    scenario = load(
        "llama-3.2-1b",
        (
            "cluster=workstation-2x4090",
            "batch=8",
            "model.sequence=2048",
            "framework=hf-trainer-fsdp",
            lengths,
            "training.adapters=lora",
        ),
    )
    found = plan(scenario, 2, top=2)
    candidates = found.configurations
    fitting = np.flatnonzero(found.memory_bytes <= found.capacity_bytes)
    seconds = np.array([timed(candidates.scenario(row)).step_time_s for row in fitting.tolist()])
    times = candidates.times(fitting)
    assert (times.least_s <= seconds * (1 + 1e-9)).all()
    assert times.expected_s == pytest.approx(seconds, rel=0.1)
    assert found.proved
    assert found.best[0].value == pytest.approx(seconds.min(), rel=1e-9)
