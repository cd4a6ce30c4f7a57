"""Configuration files of training software as scenarios: fields, what became of each key, and errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.frameworks.files import names
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.config_files import ConfigFiles, read
from scaleproof.simulator.scenario.config_files.formats import FILE, PARTS, formats
from scaleproof.simulator.scenario.fields import field_at, value_at
from scaleproof.simulator.scenario.load import load

AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B-Instruct
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_dropout: 0.05
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
flash_attention: true
learning_rate: 0.0002
neftune_noise_alpha: 5
"""
TRAINER = """
output_dir: out
model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
bf16: true
gradient_checkpointing: true
"""
DEEPSPEED = (
    '{\t"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "cpu"}},\n'
    '"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}'
)
ACCELERATE = """
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_offload_params: false, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}
"""
LLAMA_FACTORY = """
model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
stage: sft
finetuning_type: lora
lora_target: all
quantization_bit: 4
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
"""
TORCHTUNE = """
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: [q_proj, v_proj]
  apply_lora_to_mlp: true
  lora_rank: 8
tokenizer: {max_seq_len: 1024}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer}
batch_size: 2
dtype: bf16
enable_activation_checkpointing: true
optimizer: {_component_: torch.optim.AdamW, fused: true, lr: 3e-4}
"""


def written(folder: Path, *texts: str) -> list[str]:
    paths = [folder / f"config{number}.{'json' if text.startswith('{') else 'yaml'}" for number, text in enumerate(texts)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return list(map(str, paths))


def fields_of(files: ConfigFiles) -> dict[str, Any]:
    """The fields by their paths."""
    found: dict[str, Any] = {}

    def collect(data: dict[str, Any], path: str) -> None:
        for name, value in data.items():
            if isinstance(value, dict):
                collect(value, f"{path}{name}.")
            else:
                found[path + name] = value

    collect(files.located.data, "")
    return found


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            [AXOLOTL],
            {
                "model.base": "llama-3-8b", "model.sequence": 4096, "framework": "hf-trainer", "batch.per_worker": 8,
                "strategy.microbatches": 4, "training.precision": "bf16", "training.optimizer": "adam",
                "training.recompute": "full", "training.base_precision": "nf4", "training.adapters.kind": "lora",
                "training.adapters.rank": 32, "training.adapters.dropout": 0.05, "training.adapters.targets": ["all-linear"],
                "training.double_quantization": True,
            },
        ),
        # parameters of full fine-tuning are in 16 bits
        ([AXOLOTL.replace("adapter: qlora\n", "").replace("load_in_4bit: true", "")], {"training.master": False}),
        ([TRAINER], {"framework": "hf-trainer", "batch.per_worker": 32, "model.base": "qwen2.5-7b"}),
        ([TRAINER + "max_length: 2048"], {"framework": "trl", "model.sequence": 2048}),
        ([TRAINER + "use_liger_kernel: true"], {"framework": "hf-trainer-liger"}),
        ([TRAINER + "attn_implementation: eager"], {"model.flash": False}),
        (
            [TRAINER + "fsdp: shard_grad_op auto_wrap offload"],
            {"framework": "hf-trainer-fsdp", "training.zero": 2, "training.offload": ["optimizer"]},
        ),
        ([TRAINER + "optim: paged_adamw_8bit\nmax_grad_norm: 0"], {"training.clip_gradients": False}),
        (
            [TRAINER + "deepspeed: config1.json", DEEPSPEED],
            {"framework": "hf-trainer-deepspeed", "training.zero": 2, "training.offload": ["optimizer"]},
        ),
        ([TRAINER, DEEPSPEED], {"framework": "hf-trainer-deepspeed", "training.zero": 2}),
        ([DEEPSPEED], {"framework": "deepspeed-zero", "training.zero": 2, "strategy.workers": 1}),
        (
            [TRAINER, ACCELERATE],
            {"framework": "hf-trainer-fsdp", "training.zero": 3, "strategy.workers": 8, "training.precision": "bf16"},
        ),
        # the number of processes follows from the batch
        ([TRAINER, '{"train_batch_size": 256}'], {"strategy.workers": 8, "batch.per_worker": 32}),
        (
            [LLAMA_FACTORY],
            {
                "model.base": "llama-3.1-8b", "training.adapters.rank": 8, "training.adapters.targets": ["all-linear"],
                "training.base_precision": "nf4", "training.recompute": "full", "batch.per_worker": 1,
            },
        ),
        ([LLAMA_FACTORY + "use_unsloth: true"], {"framework": "unsloth"}),
        (
            [TORCHTUNE],
            {
                "model.base": "llama-3.1-8b", "model.sequence": 1024, "framework": "torchtune", "training.zero": 3,
                "training.adapters.targets": ["q_proj", "v_proj", "gate", "up", "down"], "training.adapters.rank": 8,
                "training.recompute": "full", "training.precision": "bf16", "batch.per_worker": 2,
            },
        ),
        ([TORCHTUNE.replace("lora_llama3_1_8b", "llama3_1_8b")], {"training.master": False, "training.adapters.rank": None}),
    ],
)  # fmt: skip
def test_keys_become_fields(tmp_path: Path, texts: Sequence[str], expected: dict[str, Any]) -> None:
    found = fields_of(read(written(tmp_path, *texts)))
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        (TRAINER + "optim: paged_adamw_8bit\nmax_grad_norm: 0.0", ()),
        (TRAINER + "activation_offloading: true", ()),
        (ACCELERATE.replace("params: false", "params: true"), ("model=llama-2-7b", "batch=64")),
        (DEEPSPEED, ("model=gpt2-small", "batch=64", "gpus=8")),
        (LLAMA_FACTORY, ("gpus=2",)),
        (TORCHTUNE, ()),
        (TORCHTUNE.replace("lora_llama3_1_8b", "llama3_1_8b"), ("gpus=4",)),
    ],
)
def test_what_is_read_is_a_valid_scenario(tmp_path: Path, text: str, overrides: Sequence[str]) -> None:
    assert load(f"from:{written(tmp_path, text)[0]}", ["cluster=dgx-a100", *overrides])


def test_it_is_said_what_became_of_each_key(tmp_path: Path) -> None:
    lines = read(written(tmp_path, AXOLOTL)).lines
    said = {line.key.partition(":")[0]: line for line in lines if line.key}
    assert said.keys() == {line.partition(":")[0] for line in AXOLOTL.split() if line.endswith(":")}
    assert said["micro_batch_size"].field == "batch.per_worker=8"
    assert said["learning_rate"].kind == "ignored"
    # unknown keys may change time or memory
    assert said["neftune_noise_alpha"].kind == "not modelled"
    assert {line.field for line in lines if line.kind == "assumed"} >= {"strategy.workers=1", "model.sequence=4096"}


def test_a_key_is_not_said_to_set_what_another_one_does(tmp_path: Path) -> None:
    lines = read(written(tmp_path, TRAINER + "tf32: true\nuse_liger_kernel: true\nlora_dropout: 0.1\nfsdp: full_shard")).lines
    assert {(line.kind, line.key.partition(":")[0], line.reason) for line in lines} >= {
        ("ignored", "tf32", "with mixed precision"),
        ("ignored", "lora_dropout", "without adapters"),
        ("not modelled", "use_liger_kernel", "hf-trainer-fsdp has no liger kernels here"),
    }


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["steps: 3"], "not a known configuration; known by these keys: Accelerate (distributed_type), Axolotl (base_model)"),
        ([TRAINER.replace("size: 4", "size: 0")], "config0.yaml:4:1: per_device_train_batch_size: 0 is no whole number"),
        ([TRAINER.replace("bf16: true", "bf16: 3")], "config0.yaml:6:1: bf16: 3 is not known; give one of true, auto, full"),
        ([TRAINER, ACCELERATE.replace("bf16", "fp16")], "mixed_precision: fp16 contradicts bf16: true at"),
        ([TRAINER + "deepspeed: none.json"], "deepspeed: none.json: no such file; give its path by a further --from"),
        ([TRAINER, ACCELERATE, '{"train_batch_size": 100}'], "train_batch_size: 100, but 4 x 8 x 8 samples are 256"),
    ],
)
def test_files_that_are_wrong_are_refused(tmp_path: Path, texts: Sequence[str], problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(written(tmp_path, *texts))
    assert problem in str(caught.value)


def test_files_are_a_scenario_that_can_be_printed(tmp_path: Path) -> None:
    paths = written(tmp_path, AXOLOTL)
    scenario = load(f"from:{paths[0]}", ["cluster=dgx-a100", "gpus=4"])
    assert (scenario.strategy.workers, scenario.total_samples, scenario.framework.name) == (4, 32, "hf-trainer")
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump.dump(scenario))
    assert load(str(copy)) == scenario


def test_overrides_replace_what_files_say(tmp_path: Path) -> None:
    paths = written(tmp_path, AXOLOTL)
    scenario = load(
        f"from:{paths[0]}", ["cluster=dgx-a100", "model=llama-2-7b", "batch=64", "gpus=2", "training.recompute=none"]
    )
    assert (scenario.model.name, value_at(scenario, "model.sequence").value, scenario.total_samples) == ("llama-2-7b", 4096, 64)
    assert scenario.training.recompute.shorthand == "none"


def test_models_may_be_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 128,
        "max_position_embeddings": 64,
    }
    for folder in ("local", "here"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    paths = written(tmp_path, AXOLOTL.replace("NousResearch/Meta-Llama-3-8B-Instruct", "local"))
    monkeypatch.chdir(tmp_path / "here")
    for given in ([], ["model=hf:config.json"]):
        model = value_at(load(f"from:{paths[0]}", ["cluster=dgx-a100", "training.adapters.rank=4", *given]), "model.hidden")
        assert model.value == 64


def test_what_files_do_not_say_must_be_given(tmp_path: Path) -> None:
    paths = written(tmp_path, AXOLOTL.replace("Meta-Llama-3-8B-Instruct", "Unknown-8B"))
    with pytest.raises(ScenarioError, match="the job needs model and cluster; add --set model=llama"):
        load(f"from:{paths[0]}")
    with pytest.raises(InputError, match="give the paths"):
        load("from:")
    with pytest.raises(
        ScenarioError, match=f"this is a configuration of Axolotl, not a scenario; give it by --from {paths[0]}"
    ):
        load(paths[0])


@pytest.mark.parametrize("one", formats(), ids=lambda one: one.name)
def test_formats_set_fields_that_scenarios_have(one: Any) -> None:
    targets = {target for values in one.keys.values() for target in values} | set(one.defaults)
    for target in targets - PARTS.keys() - {FILE}:
        assert field_at(target)
    assert one.software in (*names(), "deepspeed")
