"""Models of a config.json: equal to shipped ones, and errors for invalid ones."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError, NotFoundError, ScenarioError
from scaleproof.simulator.model import huggingface
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model
from tests.conftest import SMALL

# what the published configurations say of the architecture, with some unrelated fields
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-2-70b": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8192,
        "initializer_range": 0.02, "intermediate_size": 28672, "max_position_embeddings": 4096, "num_attention_heads": 64,
        "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
        "torch_dtype": "float16", "vocab_size": 32000, "rope_scaling": None, "pretraining_tp": 1,
    },
    "mistral-7b": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096,
        "vocab_size": 32000, "rope_theta": 10000.0,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "sliding_window": None, "vocab_size": 32000, "router_aux_loss_coef": 0.02,
    },
    "qwen2-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
        "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "sliding_window": 131072, "use_sliding_window": False, "tie_word_embeddings": False, "vocab_size": 152064,
    },
    "gpt2-small": {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_ctx": 1024, "n_inner": None,
        "vocab_size": 50257, "resid_pdrop": 0.1,
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "max_position_embeddings": 2048,
        "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_pct": 0.25, "tie_word_embeddings": False,
        "vocab_size": 50432,
    },
    "bert-base": {
        "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522,
        "hidden_dropout_prob": 0.1,
    },
    "t5-base": {
        "model_type": "t5", "d_ff": 3072, "d_kv": 64, "d_model": 768, "num_heads": 12, "num_layers": 12, "n_positions": 512,
        "relative_attention_num_buckets": 32, "vocab_size": 32128, "dropout_rate": 0.1,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "topk_group": 4,
    },
}  # fmt: skip


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def problem(folder: Path, config: dict[str, Any]) -> str:
    """The error message for a config.json."""
    with pytest.raises(ScenarioError) as caught:
        huggingface.read(written(folder, config))
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_gives_the_shipped_model(name: str, tmp_path: Path) -> None:
    shipped = load_model(name)
    read = load_model(f"hf:{written(tmp_path, CONFIGS[name])}", sequence=shipped.model_dump()["sequence"])
    assert read.parameters() == shipped.parameters()
    products = [[layer.forward_flops for layer in model.build_layers()] for model in (read, shipped)]
    assert products[0] == products[1]


# counts of the published weights: Qwen/Qwen3-8B and Qwen/Qwen3-30B-A3B
@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (
            {
                "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
                "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36, "max_position_embeddings": 40960,
                "vocab_size": 151936, "tie_word_embeddings": False, "attention_bias": False,
            },
            8_190_735_360,
        ),
        (
            {
                "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
                "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48, "max_position_embeddings": 40960,
                "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
                "mlp_only_layers": [], "vocab_size": 151936, "tie_word_embeddings": False,
            },
            30_532_122_624,
        ),
    ],
)  # fmt: skip
def test_head_norms_and_wide_heads_are_read(config: dict[str, Any], parameters: int, tmp_path: Path) -> None:
    model = load_model(f"hf:{written(tmp_path, config)}")
    assert model.parameters() == parameters


def test_the_default_sequence_length_is_the_longest_supported(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIGS["llama-2-70b"])
    assert load_model(f"hf:{path}").model_dump()["sequence"] == 4096
    assert load_model(f"hf:{path}", sequence=8192).model_dump()["sequence"] == 8192
    # a table of learned positions ends, and keeps its size where samples are shorter
    gpt2 = written(tmp_path, CONFIGS["gpt2-small"])
    assert load_model(f"hf:{gpt2}", sequence=512).parameters() == 124_439_808
    with pytest.raises(ScenarioError, match="sequence: 2048 is more than position_rows 1024"):
        load_model(f"hf:{gpt2}", sequence=2048)


def without(name: str, *fields: str) -> dict[str, Any]:
    return {field: value for field, value in CONFIGS[name].items() if field not in fields}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            CONFIGS["llama-2-70b"] | {"num_key_value_heads": 5},
            "config.json: num_key_value_heads: 5 does not divide num_attention_heads 64; give a divisor of it",
        ),
        (
            CONFIGS["llama-2-70b"] | {"num_attention_heads": 60, "num_key_value_heads": 60},
            "config.json: num_attention_heads: 60 does not divide hidden_size 8192; give a divisor of it",
        ),
        (without("llama-2-70b", "vocab_size"), "config.json: vocab_size: missing; add it"),
        (CONFIGS["llama-2-70b"] | {"hidden_size": None}, "config.json: hidden_size: missing; add it"),
        (CONFIGS["llama-2-70b"] | {"num_hidden_layers": -3}, "num_hidden_layers: input should be greater than 0, got -3"),
        (CONFIGS["llama-2-70b"] | {"num_hidden_layers": "many"}, 'num_hidden_layers: expected a whole number, got "many"'),
        (CONFIGS["mixtral-8x7b"] | {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is more than num_local_experts 8"),
        (CONFIGS["mixtral-8x7b"] | {"num_local_experts": 0}, "num_local_experts: input should be greater than 0, got 0"),
        (
            CONFIGS["mixtral-8x7b"] | {"num_local_experts": 50_000, "num_hidden_layers": 50_000},
            "config.json: num_local_experts: 50000 in each of 50000 blocks; give at most 250000 in all",
        ),
        (
            CONFIGS["deepseek-v3"] | {"first_k_dense_replace": 99},
            "config.json: first_k_dense_replace: 99 is more than num_hidden_layers 61; give fewer",
        ),
        (
            CONFIGS["deepseek-v3"] | {"num_key_value_heads": 8},
            "num_key_value_heads: 8 differs from num_attention_heads 128; with latent attention they are equal",
        ),
        (CONFIGS["deepseek-v3"] | {"moe_layer_freq": 2}, "moe_layer_freq: 2 is not supported; only 1 is"),
        (CONFIGS["gpt2-small"] | {"n_ctx": 512}, "n_ctx: 512 contradicts n_positions 1024; make them equal, or leave"),
        (CONFIGS["gpt2-small"] | {"model_type": "mamba"}, "model_type: 'mamba' is not known; give one of bert, deepseek_v3"),
        (without("gpt2-small", "model_type"), "config.json: model_type: missing; give one of bert"),
        (CONFIGS["llama-2-70b"] | {"model_type": ["llama"]}, "model_type: ['llama'] is not known"),
    ],
)  # fmt: skip
def test_errors_name_file_and_field(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    printed = problem(tmp_path, config)
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"model_type": "llama",', "config.json:1:24: not valid JSON"),
        (b"[1, 2]", "config.json: not a JSON object; give a model's config.json"),
        (b"\xff\xfe", "config.json: not a JSON text; give a model's config.json"),
        (b"[" * 100_000, "config.json: not a JSON text; give a model's config.json"),
    ],
)
def test_invalid_configurations_are_rejected(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ScenarioError) as caught:
        huggingface.read(path)
    assert message in str(caught.value)


def test_a_missing_file_gives_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="No such file or directory; give hf: and the path of a model's"):
        huggingface.read(tmp_path / "config.json")
    with pytest.raises(NotFoundError, match=r"config\.json: No such file"):
        huggingface.read(tmp_path)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@settings(max_examples=300)
@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_any_field_value_is_read_or_rejected(name: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    """Never anything but a model or an error of ours."""
    field = data.draw(st.sampled_from(sorted(CONFIGS[name])))
    path = written(tmp_path_factory.getbasetemp(), CONFIGS[name] | {field: data.draw(VALUES)})
    with contextlib.suppress(InputError):
        assert huggingface.read(path)["layers"]


def test_scenarios_name_configurations_by_relative_path(tmp_path: Path) -> None:
    written(tmp_path, CONFIGS["gpt2-small"])
    lines = SMALL.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("model:"))
    lines[start] = "model: hf:config.json"
    (tmp_path / "scenario.yaml").write_text("\n".join(lines))
    model = load(tmp_path / "scenario.yaml").model
    assert model.parameters() == 124_439_808
    assert model.name == tmp_path.name
    written(tmp_path, CONFIGS["gpt2-small"] | {"n_head": 7})
    with pytest.raises(ScenarioError, match=r"config\.json: n_head: 7 does not divide n_embd 768"):
        load(tmp_path / "scenario.yaml")


def test_overrides_name_configurations_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, CONFIGS["bert-base"])
    monkeypatch.chdir(tmp_path)
    scenario = load("resnet50-ring-p100", ["model=hf:config.json", "batch.per_worker=1"])
    assert scenario.model.parameters() == 109_482_240
    with pytest.raises(ScenarioError, match="--set model=hf:nothing: model: nothing: No such file"):
        load("resnet50-ring-p100", ["model=hf:nothing"])
