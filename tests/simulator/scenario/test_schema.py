from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import strategies as st

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import NotFoundError, ScenarioError
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario, json_schema
from tests.conftest import SMALL

LINES = SMALL.splitlines()


def problem(text: str, tmp_path: Path, *overrides: str) -> str:
    """The error message for a scenario's text."""
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load(path, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


PIPELINE = SMALL.replace(LINES[6], "strategy:\n  kind: pipeline\n  stages: 3\n  microbatches: 12")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  stages: 3", "  stages: 9", "scenario.yaml:9:3: strategy.stages: 9 stages for 6 layers; give at most 6"),
        ("  stages: 3", "  stagse: 3", "scenario.yaml:9:3: strategy.stagse: unknown key; did you mean 'stages'?"),
        ("  stages: 3", "  stages: -1", "scenario.yaml:9:3: strategy.stages: must be greater than 0, got -1"),
        ("  stages: 3", "  stages: many", "scenario.yaml:9:3: strategy.stages: expected a whole number, got 'many'"),
        ("  microbatches: 12", "  microbatches: 7", "strategy.microbatches: 7 microbatches do not divide 48 samples; give 6"),
        ("  microbatches: 12", "  microbatches: 5", "5 microbatches do not divide 48 samples; give 4"),
        ("kind: pipeline", "kind: pipe", "scenario.yaml:8:3: strategy: unknown kind 'pipe'; give one of parameter_server"),
        ("  kind: pipeline\n", "", "scenario.yaml:7:1: strategy: missing 'kind'; give one of parameter_server, data_parallel"),
        ("  stages: 3", "  stages: true", "scenario.yaml:9:3: strategy.stages: expected a whole number, got True"),
        ("batch: 48", "", "scenario.yaml:1:1: batch: missing; add it"),
        ("batch: 48", "batch: .nan", "scenario.yaml:11:1: batch.total: expected a finite number, got nan"),
        ("batch: 48", "batch: 4 8", "scenario.yaml:11:1: batch.total: expected a whole number, got '4 8'"),
        ("batch: 48", "batch: 48\ntraining: {learning_rate: 5 %}", "learning_rate: expected a number such as 0.5, got '5 %'"),
        ("batch: 48", "batch: 0", "scenario.yaml:11:1: batch.total: must be greater than 0, got 0"),
        ("batch: 48", "batch: {total: 8, per_worker: 2}", "batch: give total or per_worker, not both"),
        ("batch: 48", "batch: 48\nbatch: 8", "scenario.yaml:12:1: batch: given twice; keep one"),
        ("batch: 48", "batch: 48\nzzz: red", "scenario.yaml:12:1: zzz: unknown key; known here: batch, cluster"),
        ("10 Gbit/s", "10 Gbit", "scenario.yaml:5:13: cluster.network.bandwidth: 'Gbit' is not a unit of bandwidth"),
        ("10 Gbit/s", "10", "cluster.network.bandwidth: 10 has no unit; write a bandwidth such as '25 Gbit/s'"),
        ("10 Gbit/s", "-1 Gbit/s", "cluster.network.bandwidth: '-1 Gbit/s' is negative"),
        ("10 Gbit/s", "0 Gbit/s", "cluster.network.bandwidth: the bandwidth is zero"),
        ("8 GiB", "8 GFLOP/s", "cluster.device.memory: 'GFLOP/s' is not a unit of size"),
        ("batch: 48", "batch: [", "scenario.yaml:12:1: not valid YAML"),
        ("layers: 6", "layers: 2", "strategy.stages: 3 stages for 2 layers; give at most 2"),
        ("batch: 48", "batch: 48\ntraining: {precision: bf16}", "training.precision: small has no peak rate for bf16"),
        ("batch: 48", "batch: 48\ntraining: {precision: int4}", "training.precision: 'int4' is not known; give 'fp64', 'fp32'"),
        ("layers: 6", "layers: 1000000000000", "model.layers: must be at most 100000, got 1000000000000"),
        ("10 Gbit/s, latency: 20 us", "10 Gbit/s, latency: 1e400 us", "latency: '1e400 us' is not finite"),
        ("nodes: 8", "nodes: .inf", "cluster.nodes: "),
        ("batch: 48", "batch: 48\nname: ../../elsewhere", "scenario.yaml:12:1: name: '../../elsewhere' cannot name a folder"),
        ("batch: 48", "batch: 48\nname: ..", "scenario.yaml:12:1: name: '..' cannot name a folder"),
        ("nodes: 8", "nodes: 1.5", "cluster.nodes: expected a whole number, got 1.5"),
    ],
)  # fmt: skip
def test_errors_name_place_problem_and_remedy(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in PIPELINE
    assert message in problem(PIPELINE.replace(old, new, 1), tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("strategy.workers=5", "scenario.yaml:8:1: batch: 5 workers do not divide 48 samples; give a multiple such as 50"),
        ("strategy.workers=48", "scenario.yaml:7:1: strategy: 48 ranks for 32 devices (8 nodes × 4)"),
        ("strategy.worker=4", "--set strategy.worker=4: strategy.worker: unknown key; did you mean 'workers'?"),
        ("strategy.workers", "--set strategy.workers: expected field=value"),
        ("batch.total.x=4", "--set batch.total.x=4: batch.total has no fields"),
        ("batch=" + "[" * 100_000, "is not a valid YAML value"),
        ("batch=2001-02-30", "--set batch=2001-02-30: '2001-02-30' is not a valid YAML value"),
        ("name=&a [*a]", "is not a valid YAML value"),
        ("steps=" + "9" * 5000, "is not a valid YAML value"),
        ("model=gpt5", "--set model=gpt5: model: no model is called 'gpt5'"),
        ("model=none/gpt.yaml", "--set model=none/gpt.yaml: model: none/gpt.yaml: no such file"),
        ("cluster.network=null", "cluster.network: missing between several nodes"),
        ("cluster.network=10 Gbit/s", "expected a mapping of fields, got '10 Gbit/s'; write {bandwidth: ..., latency: ...}"),
        ("input={sample: 110 kB, decode: 1 ms}", "input.sample: unknown key; did you mean 'storage.sample'?"),
        (
            "strategy={kind: pipeline, stages: 2, microbatches: 4, workers: 2}",
            "strategy.workers: unknown key; set strategy.kind=hybrid, which has it; pipeline has stages",
        ),
        ("cluster.node.link=null", "cluster.node.link: missing between several ranks of a node"),
        (
            "strategy={kind: parameter_server, workers: 24, servers: 4}",
            "need 10 nodes, the cluster has 8; set cluster.nodes=10",
        ),
    ],
)
def test_overrides_are_checked_like_the_file(override: str, message: str, tmp_path: Path) -> None:
    text = problem(SMALL, tmp_path, override)
    assert message in text


def test_parts_are_given_by_name_path_or_inline(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("kind: mlp\nlayers: 2\ninputs: 3\nhidden: 4\noutputs: 5\n")
    path = tmp_path / "s.yaml"
    path.write_text("model: ./mine.yaml\ncluster: dgx1\nstrategy: data_parallel\nbatch: {per_worker: 4}\n")
    scenario = load(path)
    assert scenario.model.name == "mine"
    assert scenario.cluster.name == "dgx1"
    assert scenario.name == "s"
    assert scenario.total_samples == 4


def test_an_error_in_a_part_names_the_parts_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("kind: mlp\nlayers: 2\ninputs: -3\nhidden: 4\noutputs: 5\n")
    text = "model: ./mine.yaml\ncluster: dgx1\nstrategy: data_parallel\nbatch: 4\n"
    assert problem(text, tmp_path) == "mine.yaml:3:1: model.inputs: must be greater than 0, got -3"


def test_missing_scenarios_give_an_error_with_suggestions() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'resnet50-ring-p100'"):
        load("resnet50-ring-p10")
    with pytest.raises(NotFoundError, match="no such file"):
        load("./none.yaml")


@cache
def validator() -> jsonschema.protocols.Validator:
    """The validator of the schema, which is checked once."""
    kind = jsonschema.validators.validator_for(json_schema())
    kind.check_schema(json_schema())
    return kind(json_schema())


@pytest.mark.parametrize("name", [n for folder in catalog.SCENARIO_FOLDERS for n in catalog.names(folder)])
def test_shipped_scenarios_load_and_fit_the_schema(name: str) -> None:
    path = catalog.find_scenario(name)
    assert load(name).name == name
    validator().validate(yaml.safe_load(path.read_text()))
    assert yaml.safe_load(path.read_text())["description"]


def test_the_schema_rejects_what_the_loader_rejects() -> None:
    plain = yaml.safe_load(SMALL)
    validator().validate(plain)
    for broken in (plain | {"colour": "red"}, plain | {"batch": "many"}, plain | {"strategy": {"kind": "pipe"}}):
        with pytest.raises(jsonschema.ValidationError):
            validator().validate(broken)


fields = st.sampled_from(
    [
        ("model",), ("cluster",), ("strategy",), ("batch",), ("steps",), ("training",), ("name",), ("model", "layers"),
        ("cluster", "node"), ("cluster", "network", "bandwidth"), ("cluster", "device", "peak"), ("strategy", "workers"),
        ("cluster", "device", "measured_layers"), ("cluster", "collectives", "allreduce"), ("strategy", "kind"),
    ]
)  # fmt: skip


def test_loading_a_scenario_does_not_import_torch() -> None:
    code = "import sys, scaleproof.simulator.predict; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_layer_counts_beyond_64_bits_are_rejected(small: Callable[..., Scenario]) -> None:
    with pytest.raises(ScenarioError, match=r"model: a layer has more than 1e\+15 parameters"):
        small("model={kind: gpt, layers: 6, hidden: 1000000000, heads: 4, vocabulary: 256, sequence: 32}")


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("model: llama-3-71b\ncluster: dgx-h101\nstratgey: {kind: hybrid}\nbatch: 64\n")
    with pytest.raises(ScenarioError) as caught:
        load(path, ["cluster.nodes=4", "network.bandwidth=1"])
    places = [problem.removeprefix(f"{path}:").partition(";")[0] for problem in caught.value.problems]
    assert places == [
        "1:1: model: no model is called 'llama-3-71b'",
        "2:1: cluster: no cluster is called 'dgx-h101'",
        "--set network.bandwidth=1: a scenario has no field 'network.bandwidth'",
        "3:1: stratgey: unknown key",
    ]
