"""Dumped scenarios load to equal scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.dump import dump, dump_part
from scaleproof.simulator.scenario.load import build, load
from scaleproof.simulator.scenario.schema import Scenario
from tests.conftest import SMALL

SHIPPED = [name for folder in catalog.SCENARIO_FOLDERS for name in catalog.names(folder)]

ORDER = ["workers", "tensor", "context", "stages"]

prefixed = st.sampled_from(["Gbit/s", "GB/s", "MB/s"])
times = st.builds("{} {}".format, st.floats(0, 1e6), st.sampled_from(["us", "ms", "s"]))
rates = st.builds("{} {}".format, st.floats(1e-3, 1e4), prefixed)
sizes = st.builds("{} {}".format, st.floats(1, 1e4), st.sampled_from(["MiB", "MB", "kB"]))
# files hold no control characters
words = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=40)
# fields, and what may be written there
FIELDS = {
    "description": words,
    "name": words.filter(lambda word: len(word.encode()) < 100),
    "steps": st.integers(1, 50),
    "cluster.description": words,
    "cluster.network.bandwidth": rates,
    "cluster.network.latency": times,
    "cluster.network.overhead": times,
    "cluster.network.incast": st.floats(0, 1000),
    "cluster.network.topology": st.sampled_from([{"kind": "leaf_spine", "per_leaf": 4}, {"kind": "mesh"}]),
    "cluster.network.exceptions": st.lists(st.fixed_dictionaries({"at": st.just([1, 3]), "bandwidth": rates}), max_size=2),
    "cluster.node.power": st.builds("{} kW".format, st.floats(0, 100)),
    "cluster.node.price": st.builds("{} USD/h".format, st.floats(0, 1000)),
    "cluster.device.peak": st.dictionaries(st.sampled_from(["fp16", "bf16"]), st.builds("{} TFLOP/s".format, st.floats(1, 1e4)))
    .map(lambda peak: {"fp32": "1 TFLOP/s", **peak}),
    "cluster.uncertainty": st.just({"network.latency": {"low": "1 us", "high": "30 us"}}),
    "strategy": st.sampled_from(
        [
            {"kind": "parameter_server", "workers": 4, "servers": 2, "mode": "stale_synchronous", "bound": 3},
            {"kind": "pipeline", "stages": 3, "microbatches": 12, "schedule": "zb_h1"},
            {"kind": "hybrid", "workers": 2, "stages": 2, "tensor": 2, "microbatches": 4, "order": ORDER},
            {"kind": "data_parallel", "workers": 4, "compression": {"kind": "power_sgd", "rank": 2}},
            {"kind": "data_parallel", "workers": 2, "shares": [12, 36]},
            {"kind": "local_sgd", "workers": 4, "period": 7},
        ]
    ),
    "strategy.bucket": sizes,
    "training.optimizer": st.sampled_from(["adam", "lamb"]),
    "training.learning_rate": st.floats(1e-9, 10),
    "training.recompute": st.sampled_from(["none", "full", {"group": 2}]),
    "training.measured_step": st.none(),
    "unevenness.stragglers": st.just([{"ranks": 1, "slowdown": 1.5}]),
    "unevenness.compute_jitter": st.floats(0, 10),
    "unevenness.late": st.lists(st.fixed_dictionaries({"ranks": st.just([0, 1]), "delay": times}), max_size=2),
    "input": st.fixed_dictionaries({"decode": times.filter(lambda time: not time.startswith("0.0 "))}),
}  # fmt: skip
one_change = st.sampled_from(sorted(FIELDS)).flatmap(lambda field: st.tuples(st.just(field), FIELDS[field]))


def loaded(text: str) -> Scenario:
    return build(yaml_file.parse(text, "other.yaml"), Path("other.yaml"))


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_scenarios_are_unchanged_by_dump_and_load(name: str, by_name: bool) -> None:
    scenario = load(name)
    assert loaded(dump(scenario, by_name)) == scenario


@given(changes=st.lists(one_change, max_size=6))
@example(changes=[("description", "a\n\n# b: c  \n")])
@example(changes=[("description", "ends in a newline\n"), ("name", "yes")])
@example(changes=[("name", "1e3"), ("cluster.description", "\u2028\ufeff a")])
def test_any_scenario_is_unchanged_by_dump_and_load(changes: list[tuple[str, object]]) -> None:
    try:
        scenario = loaded(SMALL)
        for field, value in changes:
            located = yaml_file.parse(dump(scenario), "other.yaml")
            scenario = build(located, Path("other.yaml"), [f"{field}={yaml.safe_dump(value, default_flow_style=True)}"])
    except InputError:
        assume(False)
    assert loaded(dump(scenario)) == scenario
    assert loaded(dump(scenario, by_name=True)) == scenario


@pytest.mark.parametrize("name", ["netlab-servers-async", "pipeline-2"])
def test_dumped_scenarios_predict_the_same(name: str) -> None:
    scenario = load(name, ["unevenness.compute_jitter=0.1"])
    again, before = (predict(one).to_dict() for one in (loaded(dump(scenario)), scenario))
    # what is written names its framework, so that another default changes nothing
    assert (again.pop("framework_is_default"), before.pop("framework_is_default")) == (False, True)
    assert again == before


def test_only_unchanged_shipped_parts_are_named() -> None:
    plain = yaml.safe_load(dump(load("resnet50-ring-p100"), by_name=True))
    assert (plain["model"], plain["cluster"]) == ("resnet50", "p100-25gbe")
    changed = yaml.safe_load(dump(load("resnet50-ring-p100", ["cluster.network.bandwidth=100 Gbit/s"]), by_name=True))
    assert changed["model"] == "resnet50"
    assert changed["cluster"]["network"]["bandwidth"] == "100 Gbit/s"
    assert changed["cluster"]["device"] == "p100-pcie"
    other = load("resnet50-ring-p100", ["cluster.device.memory=12 GiB"])
    assert yaml.safe_load(dump(other, by_name=True))["cluster"]["device"]["memory"] == "12 GiB"


def test_default_values_are_omitted() -> None:
    text = dump(loaded(SMALL))
    assert text == "\n".join([
        "name: other",
        "model: {kind: gpt, layers: 6, hidden: 64, heads: 4, vocabulary: 256, sequence: 32}",
        "cluster:",
        "  nodes: 8",
        "  node:",
        "    devices: 4",
        "    link: {bandwidth: 80 Gbit/s, latency: 5 us}",
        "  network: {bandwidth: 10 Gbit/s, latency: 20 us}",
        "  device:",
        "    name: small",
        "    peak: {fp32: 1 TFLOP/s}",
        "    memory: 8 GiB",
        "    memory_bandwidth: 100 GB/s",
        "framework: pytorch-ddp",
        "strategy: {kind: data_parallel, workers: 4, bucket: 25 MiB, first_bucket: 1 MiB, overlap: true, reshard: true}",
        "batch: {total: 48}",
        "",
    ])  # fmt: skip


def test_readers_see_no_fields_that_the_framework_decides() -> None:
    strategy = "cluster=dgx-h100", "batch=64", "strategy={kind: data_parallel, workers: 4}"
    assert dump_part(load("llama-2-7b", strategy), "strategy") == "strategy: {kind: data_parallel, workers: 4}"
    changed = load("llama-2-7b", [*strategy, "strategy.overlap=false", "strategy.bucket=100 MiB"])
    assert dump_part(changed, "strategy") == "strategy: {kind: data_parallel, workers: 4, bucket: 100 MiB, overlap: false}"
    assert loaded(dump(changed, by_name=True)) == changed
    # with ZeRO's stage 3, gradients are scattered layer by layer, without buckets
    sharded = load("llama-2-7b", [*strategy, "strategy.bucket=100 MiB", "training.zero=3"])
    assert dump_part(sharded, "strategy") == "strategy: {kind: data_parallel, workers: 4}"
    assert loaded(dump(sharded, by_name=True)) == sharded
    # frameworks decide nothing of parameter servers
    served = load("resnet50-servers-p100", ["strategy.bucket=100 MiB"])
    assert loaded(dump(served, by_name=True)).strategy == served.strategy
