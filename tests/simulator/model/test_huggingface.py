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
    "mamba2-7b": {
        "model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 32768, "num_heads": 128,
        "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 256, "tie_word_embeddings": False,
    },
    "nemotron-h-8b": {
        "model_type": "nemotron_h", "hidden_size": 4096, "num_hidden_layers": 52, "vocab_size": 131072,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128,
        "max_position_embeddings": 8192, "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    },
    "jamba-v0.1": {
        "model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 65536, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "num_experts": 16, "num_experts_per_tok": 2,
        "max_position_embeddings": 262144, "tie_word_embeddings": False,
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "vocab_size": 151936,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_num_value_heads": 32,
        "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 512,
        "num_experts_per_tok": 10, "moe_intermediate_size": 512, "max_position_embeddings": 262144,
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


def config_of(
    kind: str, hidden: int, feedforward: int, heads: int, key_heads: int, layers: int, words: int, **others: Any
) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": feedforward, "num_attention_heads": heads,
        "num_key_value_heads": key_heads, "num_hidden_layers": layers, "vocab_size": words, "max_position_embeddings": 4096,
    } | others  # fmt: skip


CLIP = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14}
QWEN_VISION = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14}
GEMMA_3 = config_of("gemma3_text", 2560, 10240, 8, 4, 34, 262208, sliding_window=1024)


# numbers of parameters that the pages of the published weights print
@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (config_of("qwen3", 4096, 12288, 32, 8, 36, 151936, head_dim=128), 8_190_735_360),
        (
            config_of("qwen3_moe", 2048, 6144, 32, 4, 48, 151936, head_dim=128, moe_intermediate_size=768, num_experts=128)
            | {"num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": []},
            30_532_122_624,
        ),
        (config_of("gemma2", 3584, 14336, 16, 8, 42, 256000), 9_241_705_984),
        (config_of("gemma3_text", 1152, 6912, 4, 1, 26, 262144, sliding_window=512), 999_885_952),
        (config_of("phi3", 3072, 8192, 32, 32, 32, 32064), 3_821_079_552),
        (config_of("phi", 2560, 10240, 32, 32, 32, 51200), 2_779_683_840),
        (config_of("olmo2", 4096, 11008, 32, 32, 32, 100352), 7_298_617_344),
        (config_of("glm4", 4096, 13696, 32, 2, 40, 151552, head_dim=128), 9_400_279_040),
        (config_of("stablelm", 2560, 6912, 32, 32, 32, 50304), 2_795_443_200),
        (
            config_of("gpt_oss", 2880, 2880, 64, 8, 24, 201088, num_local_experts=32, num_experts_per_tok=4),
            20_914_757_184,
        ),
        (
            {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32}
            | {"vocab_size": 65024},
            6_921_720_704,
        ),
        (
            {"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60}
            | {"vocab_size": 65024, "num_kv_heads": 8, "new_decoder_architecture": True},
            41_303_293_952,
        ),
        (
            {"model_type": "llava", "vision_config": CLIP, "text_config": config_of("llama", 4096, 11008, 32, 32, 32, 32064)},
            7_063_427_072,
        ),
        (config_of("qwen2_vl", 3584, 18944, 28, 4, 28, 152064, vision_config=QWEN_VISION), 8_291_375_616),
        (
            config_of("qwen2_5_vl", 3584, 18944, 28, 4, 28, 152064)
            | {"vision_config": {"hidden_size": 1280, "intermediate_size": 3420}},
            8_292_166_656,
        ),
        ({"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": GEMMA_3}, 4_300_079_472),
    ],
)  # fmt: skip
def test_models_have_the_parameters_of_the_published_weights(config: dict[str, Any], parameters: int, tmp_path: Path) -> None:
    assert load_model(f"hf:{written(tmp_path, config)}").parameters() == parameters


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
        (config_of("phi", 64, 256, 4, 4, 2, 100, qk_layernorm=True), "qk_layernorm: True is not supported; only False is"),
        (
            config_of("qwen2_vl", 64, 256, 4, 4, 2, 100, vision_config={"embed_dim": 1280, "num_heads": 7}),
            "vision_config: heads: 7 does not divide hidden 1280",
        ),
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
