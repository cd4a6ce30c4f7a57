"""Controls of the explorer: every offered choice is valid."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from scaleproof.reports.explorer.controls.form import controls
from scaleproof.reports.explorer.controls.layouts import settings_between
from scaleproof.reports.explorer.question import Question, Shelf
from scaleproof.reports.explorer.responses.answer import scenario_of
from scaleproof.simulator.scenario.fields import value_at
from tests.validator.verdicts import in_bulk


def by_field(reference: str, *sets: str) -> dict[str, dict[str, Any]]:
    groups = controls(scenario_of(Question(reference, sets)))
    return {one["field"]: one for group in groups for one in group["controls"]}


@pytest.mark.full
@pytest.mark.parametrize(
    ("reference", "given"),
    [
        ("resnet50-servers-p100", ()),
        ("megatron-175b-3d-selene", ()),
        ("mixtral-8x7b-experts-h100", ("training.precision=fp8", "training.fp8_recipe=current")),
        *in_bulk(
            ("gpt3-1.3b-diloco-wan", ()),
            ("resnet50-async-straggler-p100", ()),
            ("horovod", ()),
            ("llama-2-7b-fsdp-a100", ()),
            ("mixtral-8x7b-experts-h100", ("training.precision=fp8",)),
            ("mixtral-8x7b-experts-h100", ("cluster=dgx-b200", "training.precision=fp8", "training.fp8_recipe=mxfp8")),
            ("llama-3-8b-long-context-h100", ("training.precision=fp8", "framework=null")),
        ),
    ],
)
def test_every_offered_choice_gives_a_valid_scenario(reference: str, given: tuple[str, ...]) -> None:
    for control in by_field(reference, *given).values():
        options = control.get("options", [])
        # a selection of the many models and clusters
        for option in options[:: max(1, len(options) // 12)]:
            sets = (*given, *option["sets"])
            assert sets or not option.get("offer")
            Shelf().question([("scenario", reference), *(("set", one) for one in sets)])
            scenario_of(Question(reference, sets))


@pytest.mark.parametrize("reference", ["resnet50-servers-p100", "megatron-175b-3d-selene", "siamese-towers-dgx1"])
def test_every_control_shows_the_current_value_and_a_help_text(reference: str) -> None:
    for control in by_field(reference).values():
        assert control["label"]
        assert control.get("term") or control["help"]
        if control["kind"] in ("choice", "search"):
            assert control["value"] in [option["says"] for option in control["options"]]


LARGE = ["megatron-175b-3d-selene", "llama-2-7b-fsdp-a100", "resnet50-servers-p100", "llama-2-7b-zero-bubble-a100"]


@pytest.mark.parametrize("reference", LARGE)
def test_strategies_and_degrees_keep_gpus_batch_and_machine(reference: str) -> None:
    before = scenario_of(Question(reference))
    fields = by_field(reference)
    options = [option for name in fields if name.startswith("strategy.") for option in fields[name].get("options", [])]
    moves = [option for option in options if not option.get("reason")]
    # all but the number of servers' own nodes
    for option in moves:
        if not any(text.startswith(("cluster.nodes", "strategy.placement", "strategy.servers")) for text in option["sets"]):
            after = scenario_of(Question(reference, tuple(option["sets"])))
            assert after.strategy.training_ranks == before.strategy.training_ranks
            assert after.total_samples == before.total_samples
            assert after.cluster == before.cluster
    assert len(moves) > 8


def test_strategies_that_cannot_use_the_gpus_say_why_and_offer_what_is_needed() -> None:
    option = next(one for one in by_field("llama-2-7b-fsdp-a100")["strategy.kind"]["options"] if one["says"] == "pipeline")
    assert "64 GPUs" in option["reason"]
    assert option["offer"] == "Use 32 GPUs"
    after = scenario_of(Question("llama-2-7b-fsdp-a100", tuple(option["sets"])))
    assert (after.strategy.kind, after.strategy.training_ranks, after.total_samples) == ("pipeline", 32, 128)


def test_settings_lead_from_one_scenario_to_another() -> None:
    before = scenario_of(Question("megatron-175b-3d-selene"))
    changed = ("strategy={kind: data_parallel, workers: 256}", "batch.total=512", "training.zero=3", "framework=null")
    after = scenario_of(Question("megatron-175b-3d-selene", changed))
    found = scenario_of(Question("megatron-175b-3d-selene", tuple(settings_between(before, after))))
    assert found == after
    assert settings_between(before, before) == []


def test_frameworks_that_support_the_scenario_are_offered_and_the_default_is_marked() -> None:
    options = by_field("megatron-175b-3d-selene")["framework"]["options"]
    assert options[0] == {
        "says": "megatron-core-0.12", "label": "megatron-core-0.12 (default)", "sets": ["framework=null"],
        "hint": "Megatron-Core 0.12 (2025) with Transformer Engine and the distributed optimizer",
    }  # fmt: skip
    offered = {option["says"] for option in options}
    assert {"megatron-lm-2022", "nemo", "torchtitan", "ideal"} <= offered
    assert not {"pytorch-ddp", "horovod", "tensorflow-1-servers"} & offered


def test_loading_has_sliders_where_the_scenario_loads() -> None:
    reference = "resnet50-ring-p100"
    given = "input={storage: {sample: 110 kB, bandwidth: 500 MB/s}, decode: 8 ms, cores: 40}"
    fields = by_field(reference, given)
    for field, value in (("input.storage.bandwidth", 500e6), ("input.decode", 8e-3), ("input.cores", 40)):
        slider = fields[field]
        for text in (slider["value"], slider["texts"][slider["position"]]):
            there = scenario_of(Question(reference, (given, f"{field}={text}")))
            assert value_at(there, field).value == pytest.approx(value, rel=0.06)
        for text in (slider["texts"][0], slider["texts"][-1]):
            scenario_of(Question(reference, (given, f"{field}={text}")))
    assert not any(field.startswith("input.") for field in by_field(reference))


@pytest.mark.parametrize(
    ("reference", "field"),
    [
        ("resnet50-ring-p100", "cluster.network.bandwidth"),
        ("resnet50-ring-p100", "cluster.network.latency"),
        ("resnet50-ring-p100", "cluster.node.link.bandwidth"),
        ("megatron-175b-3d-selene", "cluster.device.peak.fp16"),
    ],
)
def test_sliders_start_at_the_scenarios_value_and_move_by_ten_percent(reference: str, field: str) -> None:
    slider = by_field(reference)[field]
    now = value_at(scenario_of(Question(reference)), field).value
    at = [value_at(scenario_of(Question(reference, (f"{field}={text}",))), field).value for text in slider["texts"][::7]]
    assert at == sorted(at)
    assert all(math.log10(b / a) == pytest.approx(7 / 20, abs=0.01) for a, b in itertools.pairwise(at))
    there = scenario_of(Question(reference, (f"{field}={slider['texts'][slider['position']]}",)))
    assert value_at(there, field).value == pytest.approx(now, rel=0.06)
    exact = scenario_of(Question(reference, (f"{field}={slider['value']}",)))
    assert value_at(exact, field).value == pytest.approx(now, rel=1e-3)
