"""Framework files: shipped ones are complete, bases are merged, and errors are one line with a place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.units import parse_time_s
from scaleproof.simulator.frameworks import ABLATIONS, IDEAL, Framework, shipped
from scaleproof.simulator.frameworks.files import equal_to_shipped, names
from scaleproof.simulator.scenario.load import load
from tests.simulator.frameworks.scenarios import TEXT, scenario

# Fields that say what a file is, not how software behaves.
_ABOUT = {"base", "name", "description", "supports", "use", "sources"}


@pytest.mark.parametrize("name", names())
def test_a_shipped_framework_loads_under_the_name_of_its_file(name: str) -> None:
    framework = shipped(name)
    assert framework.name == name
    assert framework.description
    # Unsloth runs on one GPU
    assert framework.supports or name == "unsloth"
    assert equal_to_shipped(framework)


@pytest.mark.parametrize("name", names())
def test_each_field_that_a_file_sets_has_a_source(name: str) -> None:
    own = yaml.safe_load((catalog.ROOT / "frameworks" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert set(own) - _ABOUT <= set(own.get("sources", {}))
    assert set(own.get("sources", {})) <= {field.alias or name for name, field in Framework.model_fields.items()}


@pytest.mark.parametrize(
    ("word", "name"),
    [("axolotl", "hf-trainer"), ("LLaMA-Factory", "hf-trainer"), ("transformers", "hf-trainer"), ("fsdp1", "pytorch-fsdp1")],
)
def test_words_for_software_name_a_framework(word: str, name: str) -> None:
    assert shipped(word).name == name
    assert set(catalog.WORDS.values()) <= set(names())


def test_the_ideal_framework_equals_the_shipped_file() -> None:
    about = {"description": "", "supports": (), "recomputes": (), "sources": {}}
    assert shipped("ideal").model_copy(update=about) == IDEAL
    # two collectives on one link are no software cost
    for mechanism in ABLATIONS.keys() - {"link contention"}:
        assert IDEAL.ablated(mechanism) == IDEAL


def test_a_base_is_merged_field_by_field(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text("host: {kernel: 10 us, collective: 50 us}\noptimizer_bytes: 18\n")
    (tmp_path / "second.yaml").write_text("base: ./first.yaml\nhost: {kernel: 25 us}\nsupports: [data_parallel]\n")
    (tmp_path / "third.yaml").write_text("base: ./second.yaml\noptimizer_bytes: 6\n")
    framework = scenario(f"framework={tmp_path / 'third.yaml'}").framework
    assert (framework.name, framework.optimizer_bytes, framework.supports) == ("third", 6, ("data_parallel",))
    assert (framework.host.kernel_s, framework.host.collective_s) == pytest.approx((25e-6, 50e-6))


def test_a_scenario_changes_fields_of_a_base() -> None:
    framework = scenario("framework={base: pytorch-ddp, name: mine, host: {kernel: 20 us}}").framework
    plain = shipped("pytorch-ddp")
    host = plain.host.model_copy(update={"kernel_s": parse_time_s("20 us")})
    assert framework == plain.model_copy(update={"name": "mine", "host": host})
    assert not equal_to_shipped(framework)


def problem(tmp_path: Path, framework: str, *overrides: str) -> str:
    """The error message for a scenario with this framework."""
    path = tmp_path / "scenario.yaml"
    path.write_text(f"{TEXT}framework: {framework}\n")
    with pytest.raises(ScenarioError) as caught:
        load(path, overrides)
    message = str(caught.value).replace(f"{tmp_path}/", "")
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize(
    ("framework", "message"),
    [
        ("pytorch-dpp", "scenario.yaml:6:1: framework: no framework is called 'pytorch-dpp'; did you mean 'pytorch-ddp'?"),
        ("./none.yaml", "scenario.yaml:6:1: framework: ./none.yaml: no such file; give the path of a YAML file or a name"),
        ("{base: nemoo}", "scenario.yaml:6:13: framework.base: no framework is called 'nemoo'; did you mean 'nemo'?"),
        ("{base: 3}", "scenario.yaml:6:13: framework.base: expected the name or path of a framework, got '3'"),
        ("17", "scenario.yaml:6:1: framework: expected a mapping of fields, got 17"),
        ("{base: nemo, host: {kernel: fast}}", "6:32: framework.host.kernel: cannot read 'fast'; write a time such as '3 us'"),
        ("{base: nemo, hots: {}}", "scenario.yaml:6:25: framework.hots: unknown key; did you mean 'host'?"),
        ("{base: nemo, supports: [zero_4]}", "framework.supports.0: 'zero_4' is not known; give 'data_parallel', 'zero_1'"),
        ("{base: nemo, optimizer_bytes: many}", "scenario.yaml:6:25: framework.optimizer_bytes: "),
        ("{base: nemo, scale: {device_deviation: 2}}", "framework.scale.device_deviation: must be at most 1.0, got 2"),
        ("{base: nemo, gradients: {reduce: fp8}}", "framework.gradients.reduce: 'fp8' is not known; give 'fp32', 'bf16'"),
        ("{base: nemo, gradients: {reduce: {fp16: bf16}}}", "gradients.reduce.fp16: 'bf16' is not known; give 'fp32'"),
        ("{base: nemo, gradients: {reduce: {bf61: fp32}}}", "gradients.reduce.bf61: unknown key; did you mean 'bf16'?"),
        ("{base: nemo, gradients: {reduce: 3}}", "framework.gradients.reduce: expected a mapping of fields, got 3"),
        ("{}", "scenario.yaml:6:1: framework: has neither base nor name; give base, such as {base: pytorch-ddp}, or name"),
    ],
)  # fmt: skip
def test_errors_in_framework_files_are_reported_at_their_place(framework: str, message: str, tmp_path: Path) -> None:
    assert message in problem(tmp_path, framework)


def test_circular_bases_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("description: one\nbase: ./b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: ./a.yaml\n")
    message = problem(tmp_path, "./a.yaml")
    assert "its bases form a cycle; leave base out of one of these files" in message
    assert message.startswith(("a.yaml:2:", "b.yaml:1:"))


def test_an_error_in_a_base_names_the_file_of_the_base(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("name: base\nhost:\n  kernel: -1 us\n")
    assert problem(tmp_path, "{base: ./base.yaml}").startswith("base.yaml:3:3: framework.host.kernel: '-1 us' is negative")
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert problem(tmp_path, "./list.yaml") == "list.yaml:1:1: a framework file must be a mapping of fields"
    (tmp_path / "other.yaml").write_text("base: nothing-like-it\n")
    assert problem(tmp_path, "./other.yaml").startswith("other.yaml:1:1: framework.base: no framework is called")
