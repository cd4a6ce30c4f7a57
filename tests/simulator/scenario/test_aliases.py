"""Abbreviations: a scenario with the field's abbreviations is the scenario that names each field in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

SHORT = """
model: llama3-8b
cluster: DGX_H100
strategy: {kind: fsdp, dp: 4, tp: 2, pp: 2, ga: 8}
gbs: 64
optimizer: AdamW
precision: bfloat16
"""
FULL = """
model: llama-3-8b
cluster: dgx-h100
strategy: {kind: hybrid, workers: 4, tensor: 2, stages: 2, microbatches: 8}
batch: {total: 64}
training: {zero: 3, optimizer: adam, precision: bf16}
"""


def read(folder: Path, text: str, *overrides: str) -> Scenario:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return load(path, overrides)


def test_abbreviations_are_the_full_names(tmp_path: Path) -> None:
    assert read(tmp_path, SHORT) == read(tmp_path, FULL)


def test_overrides_may_be_abbreviated(tmp_path: Path) -> None:
    short = read(tmp_path, FULL, "tp=4", "gbs=128", "strategy.ga=4", "optimizer=sgd")
    full = read(tmp_path, SHORT, "strategy.tensor=4", "batch.total=128", "strategy.microbatches=4", "training.optimizer=sgd")
    assert short == full


@pytest.mark.parametrize(("kind", "zero"), [("ddp", 0), ("fsdp", 3)])
def test_ddp_and_fsdp_are_data_parallelism_with_a_stage_of_zero(kind: str, zero: int, tmp_path: Path) -> None:
    scenario = read(tmp_path, f"model: llama-3-8b\ncluster: dgx-h100\nstrategy: {kind}\nbatch: 512\n")
    assert (scenario.strategy.kind, scenario.training.zero) == ("data_parallel", zero)


PLAIN = """
model: llama-3-8b
cluster: dgx-h100
strategy: {kind: data_parallel, workers: 8}
batch: {total: 64}
training: {zero: 1, optimizer: adam, precision: bf16}
"""


@pytest.mark.parametrize("kind", ["strategy=fsdp", "strategy.kind=fsdp", "strategy={kind: fsdp}"])
@pytest.mark.parametrize("base", [PLAIN, FULL])
def test_fsdp_with_other_degrees_is_a_hybrid(kind: str, base: str, tmp_path: Path) -> None:
    scenario = read(tmp_path, base, kind, "tp=8", "dp=2")
    assert (scenario.strategy.kind, scenario.strategy.plan.tensor, scenario.training.zero) == ("hybrid", 8, 3)
    assert scenario.training.optimizer == "adam"


@pytest.mark.parametrize("others", [("tp=8", "pp=2"), ("strategy.cp=2",), ("dp=4", "strategy.ga=2"), ("optimizer=sgd",)])
@pytest.mark.parametrize("kind", ["fsdp", "ddp", "hybrid"])
def test_a_kind_and_its_fields_may_be_given_in_any_order(kind: str, others: tuple[str, ...], tmp_path: Path) -> None:
    scenario = read(tmp_path, FULL, f"strategy={kind}", *others)
    assert read(tmp_path, FULL, *others, f"strategy={kind}") == scenario
    if kind != "hybrid":
        assert scenario.training.zero == {"fsdp": 3, "ddp": 0}[kind]


def test_the_stage_of_fsdp_in_a_file_can_be_changed(tmp_path: Path) -> None:
    scenario = read(tmp_path, SHORT, "training.zero=1", "tp=4")
    assert (scenario.strategy.kind, scenario.strategy.plan.tensor, scenario.training.zero) == ("hybrid", 4, 1)
    assert read(tmp_path, SHORT, "training={optimizer: adam, precision: bf16}") == read(tmp_path, SHORT)


def test_degrees_that_a_strategy_lacks_are_refused_with_the_strategy_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"strategy.tensor: unknown key; set strategy.kind=hybrid, which has it"):
        read(tmp_path, PLAIN, "tp=8")
    assert read(tmp_path, PLAIN, "tp=8", "strategy.kind=hybrid").strategy.training_ranks == 64
    with pytest.raises(ScenarioError, match=r"fsdp is training.zero: 3, but zero is 2; leave one out"):
        read(tmp_path, PLAIN, "training.zero=2", "strategy=fsdp")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            SHORT.replace("dp: 4", "dp: 4, workers: 4"),
            "strategy.dp: means strategy.workers, which is also given; leave one out",
        ),
        (SHORT + "training: {zero: 1}", "kind: fsdp is training.zero: 3, but zero is 1; leave one out"),
        (SHORT + "batch: 64", "gbs: means batch.total, which is also given; leave one out"),
    ],
)
def test_contradictions_are_refused(changed: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=problem):
        read(tmp_path, changed)


@pytest.mark.parametrize(
    ("words", "recompute"),
    [
        ("recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 2", "{group: 2}"),
        ("recompute_granularity: full, recompute_method: block, recompute_num_layers: 4", "{layers: 4}"),
        ("recompute_granularity: full", "full"),
        ("recompute_granularity: selective", "{modules: [core_attn]}"),
        ("recompute_granularity: selective, recompute_modules: [core_attn, layernorm]", "{modules: [core_attn, layernorm]}"),
        ("activation_checkpoint: {mode: selective, selective_ac_option: op}", "{products: every_second}"),
        ("activation_checkpoint: {mode: selective, selective_ac_option: 2}", "{every: 2}"),
        ("activation_checkpoint: full", "full"),
        ("recompute: op", "{products: every_second}"),
        ("gradient_checkpointing: true", "full"),
        ("gradient_checkpointing: false", "none"),
        ("activation_checkpointing: true", "full"),
    ],
)
def test_words_of_training_software_for_recomputation(words: str, recompute: str, tmp_path: Path) -> None:
    text = PLAIN.replace("precision: bf16", f"precision: bf16, {words}")
    assert read(tmp_path, text).training.recompute.meaning == recompute
    overrides = [f"training.{one.strip()}".replace(": ", "=", 1) for one in _parts(words)]
    assert read(tmp_path, PLAIN, "training.recompute=full", *overrides).training.recompute.meaning == recompute


def _parts(words: str) -> list[str]:
    """The fields of a mapping in one line."""
    parts, depth = [""], 0
    for character in words:
        depth += (character in "{[") - (character in "}]")
        parts += [""] if character == "," and depth == 0 else []
        parts[-1] += "" if character == "," and depth == 0 else character
    return parts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "activation_checkpoint: {mode: memory_budget}",
            "training.activation_checkpoint: a compiler chooses .*; give selective",
        ),
        ("recompute: memory_budget", "training.recompute: a compiler chooses .*; give selective or full"),
        ("recompute_granularity: some", "recompute_granularity: 'some' is not known; give selective or full"),
        ("recompute_granularity: full, recompute_method: even", "recompute_method: 'even' is not known; give uniform or block"),
        ("gradient_checkpointing: unsloth", "gradient_checkpointing: 'unsloth' is not true or false; give one of them"),
        ("gradient_checkpointing: true, recompute: full", "means training.recompute, which is also given; leave one out"),
    ],
)
def test_words_that_name_no_recomputation_are_refused(words: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=message):
        read(tmp_path, PLAIN.replace("precision: bf16", f"precision: bf16, {words}"))


def test_selective_is_what_the_framework_calls_so(tmp_path: Path) -> None:
    text = PLAIN.replace("precision: bf16", "precision: bf16, recompute: selective")
    kind = {name: read(tmp_path, text, f"framework={name}").training.recompute for name in ("torchtitan", "megatron-core-0.12")}
    assert {name: one.meaning for name, one in kind.items()} == {
        "torchtitan": "{products: every_second}", "megatron-core-0.12": "{modules: [core_attn]}",
    }  # fmt: skip
    # another framework decides anew, and what is given stays
    scenario = read(tmp_path, text, "framework=torchtitan")
    other = read(tmp_path, text, "framework=megatron-core-0.12").framework
    assert scenario.copied(framework=other).training.recompute.meaning == "{modules: [core_attn]}"
    given = read(tmp_path, text, "framework=megatron-core-0.12", "training.recompute={products: every_second}")
    assert given.training.recompute.meaning == "{products: every_second}"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("adamw_torch_fused", ("adam", None)),
        ("adamw_bnb_8bit", ("adam", 8)),
        ("paged_adamw_8bit", ("adam", 8)),
        ("paged_adamw", ("adam", 32)),
        ("lion_8bit", ("lion", 8)),
    ],
)
def test_optimizers_have_the_names_of_hugging_face(word: str, expected: tuple[str, int | None], tmp_path: Path) -> None:
    training = read(tmp_path, PLAIN, f"optimizer={word}").training
    assert (training.optimizer, training.state_bits) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("lora", ("lora", 16, None)),
        ("dora", ("dora", 16, None)),
        ("QLoRA", ("lora", 16, "nf4")),
        ("{kind: qlora, rank: 8}", ("lora", 8, "nf4")),
        ("8", ("lora", 8, None)),
    ],
)
def test_adapters_may_be_given_by_a_word(given: str, expected: tuple[str, int, str | None]) -> None:
    training = load("qwen3-0.6b", ["cluster=rtx-4090", "batch=1", f"training.lora={given}"]).training
    assert training.adapters is not None
    assert (training.adapters.kind, training.adapters.rank, training.base_precision) == expected


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ("training={adapters: qlora, base_precision: int8}", "qlora has a base_precision of nf4, not int8; leave one out"),
        ("training={optimizer: adamw_8bit, state_bits: 32}", "adamw_8bit has states of 8 bits, not 32; leave one out"),
        ("training={optimizer: sgd, state_bits: 8}", "training.state_bits: sgd has no states of the size of parameters"),
        ("training={optimizer: muon, state_bits: 8}", "training.state_bits: muon in 8 bits is not modelled; give 16 or 32"),
        ("training={optimizer: adamx}", "training.optimizer: 'adamx' is not known"),
        ("training={state_bits: 4}", "training.state_bits: "),
    ],
)
def test_states_that_optimizers_lack_are_refused(changed: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as error:
        read(tmp_path, PLAIN, changed)
    assert problem in str(error.value)
