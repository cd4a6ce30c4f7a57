"""Models from a Hugging Face `config.json`, read as plain JSON without their library.

Field names and defaults are those of the configuration classes of `transformers`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from scaleproof.simulator.common.errors import NotFoundError, ScenarioError
from scaleproof.simulator.model.layers import ModelSpec
from scaleproof.simulator.model.transformer.decoder import Gpt, Llama
from scaleproof.simulator.model.transformer.encoders import T5, Bert
from scaleproof.simulator.model.transformer.vision_language import Projector, Vision, VisionLanguage

Config = Mapping[str, Any]
Fields = dict[str, Any]

_MAX_BYTES: Final = 16 * 2**20


class _Family(NamedTuple):
    """How configurations of a `model_type` are read; mappings are from our field names (nested ones with a dot) to theirs.

    required, optional: fields that must be given, or that may be missing or null. derived: computes fields from several of
    theirs. flags: fields that are true if theirs, or the default if it is missing, is neither false nor zero. equal: their
    fields that must be equal. supported: the only value of their field that a model here can have. defaults: values of their
    missing fields.
    """

    spec: type[ModelSpec]
    required: Mapping[str, str]
    optional: Mapping[str, str] = {}
    derived: Callable[[Config], Fields] = lambda config: {}
    flags: Mapping[str, tuple[str, bool]] = {}
    equal: Mapping[str, str] = {}
    supported: Mapping[str, object] = {}
    defaults: Mapping[str, object] = {}


def read(path: Path) -> Fields:
    """The fields of a model, including `kind`, from a config.json or from the folder that contains one.

    Raises NotFoundError, or ScenarioError with `file: field: problem; remedy`.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _parsed(file)
    kind = str(config.get("model_type"))
    images = _IMAGES.get(kind)
    if images is not None:
        # older files have the fields of the decoder next to those of the tower
        inner = config.get("text_config") or {name: value for name, value in config.items() if name != "model_type"}
        kept = {name: config[name] for name in _SHARED if name in config}
        kind = str(inner.get("model_type", images.text)).removesuffix("_text")
        kind, config = _DECODERS.get(kind, kind), {**kept, **inner, "vision_config": config.get("vision_config", {})}
    family = _FAMILIES.get(kind)
    if family is None:
        known = ", ".join(sorted([*_FAMILIES, *_IMAGES]))
        given = f"{config['model_type']!r} is not known" if "model_type" in config else "missing"
        raise ScenarioError([f"{file}: model_type: {given}; give one of {known}"])
    config = {**family.defaults, **config}
    if problems := _problems(config, family):
        raise ScenarioError([f"{file}: {problem}" for problem in problems])
    try:
        fields = _fields(config, family)
        if images is not None:
            fields |= _with_images(images.vision(config["vision_config"], fields["hidden"]), fields)
        model = (family.spec if images is None else VisionLanguage).model_validate(fields)
    except ValidationError as error:
        invalid = dict.fromkeys(_with_their_names(detail, family) for detail in error.errors())
        raise ScenarioError([f"{file}: {problem}" for problem in invalid]) from None
    except (ValueError, TypeError) as error:
        raise ScenarioError([f"{file}: {error}"]) from None
    return {"kind": model.model_dump()["kind"], "name": _name(file), **fields}


def _parsed(file: Path) -> Config:
    try:
        # a pipe or a device may be endless
        if file.exists() and not (file.is_file() and file.stat().st_size <= _MAX_BYTES):
            raise ScenarioError([f"{file}: no file of up to {_MAX_BYTES} bytes; give a model's config.json"])
        config = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise NotFoundError(f"{file}: {error.strerror}; give hf: and the path of a model's config.json") from None
    except json.JSONDecodeError as error:
        raise ScenarioError([f"{file}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"]) from None
    except (ValueError, RecursionError):
        raise ScenarioError([f"{file}: not a JSON text; give a model's config.json"]) from None
    if not isinstance(config, dict):
        raise ScenarioError([f"{file}: not a JSON object; give a model's config.json"])
    return config


def _name(file: Path) -> str:
    """The model's name: that of the file, or of its folder if the file is called 'config'."""
    return file.resolve().parent.name if file.stem == "config" else file.stem


def _problems(config: Config, family: _Family) -> list[str]:
    """Messages about missing, contradictory, unsupported and mistyped fields."""
    missing = [f"{name}: missing; add it" for name in dict.fromkeys(family.required.values()) if config.get(name) is None]
    unequal = [
        f"{name}: {config[name]!r} contradicts {other} {config[other]!r}; make them equal, or leave {name} out"
        for name, other in family.equal.items()
        if config.get(name) is not None and other in config and config[name] != config[other]
    ]
    unsupported = [
        f"{name}: {config[name]!r} is not supported; only {value!r} is"
        for name, value in family.supported.items()
        if config.get(name, value) != value
    ]
    mistyped = [
        f"{name}: expected a whole number, got {json.dumps(config[name])[:60]}"
        for name in dict.fromkeys(family.required.values())
        if config.get(name) is not None and type(config[name]) is not int
    ]
    return missing + mistyped + unequal + unsupported


def _fields(config: Config, family: _Family) -> Fields:
    result: Fields = {}
    for ours, theirs in (*family.required.items(), *family.optional.items()):
        if config.get(theirs) is not None:
            *parts, field = ours.split(".")
            inner = result.setdefault(parts[0], {}) if parts else result
            inner[field] = config[theirs]
    flags = {ours: _has(config, theirs, default) for ours, (theirs, default) in family.flags.items()}
    found = result | flags | family.derived(config)
    if isinstance(experts := found.get("experts"), dict):
        # DeepSeek's routers add biases that balance experts (modeling_deepseek.py, e_score_correction_bias)
        experts["imbalance"] = "bias" if config["model_type"] == "deepseek_v3" else "auxiliary_loss"
    return found


def _with_their_names(detail: Any, family: _Family) -> str:
    """The message of a validation error, with their field names instead of ours."""
    path = [str(key) for key in detail["loc"]]
    # messages of nested models use the last part of a field's name
    names = {**family.required, **family.optional}
    local = {ours.rpartition(".")[2] if path and ours.startswith(f"{path[0]}.") else ours: names[ours] for ours in names}
    if path[:1] == ["vision"]:
        return f"vision_config: {detail['ctx']['error'] if detail['type'] == 'value_error' else detail['msg']}"
    if detail["type"] == "value_error":
        pattern = "|".join(sorted(map(re.escape, local), key=len, reverse=True))
        return re.sub(rf"(?<![\w.])({pattern})(?![\w.])", lambda found: local[found[0]], str(detail["ctx"]["error"]))
    field = names.get(".".join(path), ".".join(path))
    message = str(detail["msg"])
    return f"{field}: {message[:1].lower()}{message[1:]}, got {json.dumps(detail['input'])[:60]}"


def _has(config: Config, name: str, default: bool) -> bool:
    """Whether a flag is set, or a rate is not zero."""
    value = config.get(name)
    return bool(default if value is None else value)


_SIZES: Final = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
    "sequence": "max_position_embeddings",
}
_LLAMA: Final = {**_SIZES, "feedforward": "intermediate_size"}
_GROUPED: Final = {"key_heads": "num_key_value_heads", "head_width": "head_dim", "tied": "tie_word_embeddings"}
_MISTRAL: Final = {**_GROUPED, "window": "sliding_window"}


def _llama(config: Config) -> Fields:
    if _has(config, "mlp_bias", False):
        return {"biases": "all"}
    return {"biases": "qkv"} if _has(config, "attention_bias", False) else {}


def _qwen2(config: Config) -> Fields:
    return {"biases": "qkv"} | _qwen_window(config)


def _qwen3(config: Config) -> Fields:
    return {"head_norms": True} | _llama(config) | _qwen_window(config)


def _qwen_window(config: Config) -> Fields:
    """The sliding window, which only `use_sliding_window` enables, and which the first `max_window_layers` do not have."""
    used = _has(config, "use_sliding_window", False) and config.get("sliding_window") is not None
    first, layers = config.get("max_window_layers", 28), config["num_hidden_layers"]
    if not used or first >= layers:
        return {}
    if first > 0:
        raise ValueError(f"max_window_layers: a window from layer {first} of {layers} on is not supported; give 0, or {layers}")
    return {"window": config["sliding_window"]}


def _gemma2(config: Config) -> Fields:
    capped = _has(config, "final_logit_softcapping", True)
    return {"activation": "geglu", "norms": "around", "softcap": capped, "global_every": 2} | _llama(config)


def _gemma3(config: Config) -> Fields:
    kinds = config.get("layer_types") or []
    every = kinds.index("full_attention") + 1 if "full_attention" in kinds else config.get("sliding_window_pattern", 6)
    return {"activation": "geglu", "norms": "around", "head_norms": True, "global_every": every}


def _phi(config: Config) -> Fields:
    rate = _has(config, "resid_pdrop", False)
    return {"positions": "rotary", "parallel": "one norm", "head_bias": True, "dropout": rate}


def _falcon(config: Config) -> Fields:
    heads, is_new = config["num_attention_heads"], _has(config, "new_decoder_architecture", False)
    several = config.get("num_kv_heads") or heads
    one = _has(config, "multi_query", True) and not is_new
    return {
        "positions": "rotary",
        "biases": "all" if _has(config, "bias", False) else "none",
        "parallel": (True if is_new else "one norm") if _has(config, "parallel_attn", True) else False,
        "key_heads": 1 if one else several if is_new else heads,
    }


def _gpt_oss(config: Config) -> Fields:
    experts = {"feedforward": config["intermediate_size"], "count": config["num_local_experts"], "biases": True}
    active = config.get("num_experts_per_tok", config.get("experts_per_token", 4))
    biases = "all" if _has(config, "attention_bias", True) else "none"
    return {"experts": experts | {"active": active}, "biases": biases, "sinks": True, "global_every": 2}


def _mamba2(config: Config) -> Fields:
    fields = _recurrence("mamba2", config["num_heads"], config["head_dim"], config["state_size"], config["n_groups"], config)
    return {"positions": "none", "pattern": "M", "heads": config["num_heads"]} | fields


def _nemotron_h(config: Config) -> Fields:
    heads, width = config["mamba_num_heads"], config["mamba_head_dim"]
    fields = _recurrence("mamba2", heads, width, config["ssm_state_size"], config["n_groups"], config)
    return {"positions": "none", "activation": "relu", "pattern": " ".join(config["hybrid_override_pattern"])} | fields


def _jamba(config: Config) -> Fields:
    blocks = range(config["num_hidden_layers"])
    mixes, feeds = (
        [block % config[f"{kind}_layer_period"] == config[f"{kind}_layer_offset"] for block in blocks]
        for kind in ("attn", "expert")
    )
    words = [("*" if attends else "M") + ("E" if is_mixed else "-") for attends, is_mixed in zip(mixes, feeds, strict=True)]
    inner = config["mamba_expand"] * config["hidden_size"]
    recurrence = {"kind": "mamba", "heads": inner, "width": config["mamba_d_state"], "rank": config["mamba_dt_rank"]}
    experts = {"count": config["num_experts"], "active": config["num_experts_per_tok"]}
    return {
        "positions": "none", "pattern": " ".join(words), "recurrence": recurrence,
        "experts": experts | {"feedforward": config["intermediate_size"]},
    }  # fmt: skip


def _qwen3_next(config: Config) -> Fields:
    recurrence = {
        "kind": "gated_deltanet", "heads": config["linear_num_value_heads"], "key_heads": config["linear_num_key_heads"],
        "width": config["linear_key_head_dim"], "value_width": config["linear_value_head_dim"], "chunk": 64,
    }  # fmt: skip
    experts = {"count": config["num_experts"], "active": config["num_experts_per_tok"], "shared": 1}
    words = ["ME"] * (config["full_attention_interval"] - 1) + ["*E"]
    return {
        "head_norms": True, "gated": True, "pattern": " ".join(words), "recurrence": recurrence,
        "experts": experts | {"feedforward": config["moe_intermediate_size"]},
    }  # fmt: skip


def _recurrence(kind: str, heads: int, value_width: int, width: int, key_heads: int, config: Config) -> Fields:
    fields = {"kind": kind, "heads": heads, "value_width": value_width, "width": width, "key_heads": key_heads}
    names = {"chunk": "chunk_size", "convolution": "conv_kernel"}
    return {"recurrence": fields | {ours: config[theirs] for ours, theirs in names.items() if theirs in config}}


def _stablelm(config: Config) -> Fields:
    return {"norm": "layer", "biases": "qkv" if _has(config, "use_qkv_bias", False) else "none"}


def _t5(config: Config) -> Fields:
    return {"activation": "geglu" if str(config.get("feed_forward_proj", "relu")).startswith("gated") else "relu"}


class _Images(NamedTuple):
    """How a model that reads images is read. text: `model_type` of its decoder, if it has none of its own. vision: fields of
    the tower from those of `vision_config` and the width of the decoder."""

    text: str
    vision: Callable[[Config, int], Fields]


# Fields that are next to those of the decoder, not among them.
_SHARED: Final = ("tie_word_embeddings",)
# `model_type` of the decoders of models that read images, where it is not that of a family.
_DECODERS: Final = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "gemma3": "gemma3_text"}


def _with_images(vision: Fields, fields: Fields) -> Fields:
    """The tower, and a sample that has room for an image if the configuration's has not."""
    tokens = Vision.model_construct(**vision | {"projector": Projector.model_construct(**vision["projector"])}).tokens
    return {"vision": vision, "sequence": max(tokens, fields["sequence"])}


def _clip(config: Config, hidden: int) -> Fields:
    """The tower of LLaVA 1.5: CLIP's ViT-L at 336 pixels, and two products."""
    sizes = _tower(config, layers=24, hidden=1024, heads=16, feedforward=4096, image=336, patch=14)
    return sizes | {"class_token": True, "end_norms": 2, "projector": {"width": hidden}}


def _siglip(config: Config, hidden: int) -> Fields:
    """The tower of Gemma 3, whose outputs are averaged over 4 × 4 patches, normalised and projected once."""
    sizes = _tower(config, layers=27, hidden=1152, heads=16, feedforward=4304, image=896, patch=14)
    return sizes | {"patch_bias": True, "end_norms": 1, "projector": {"pool": 4, "norm": "rms", "biases": False}}


def _tower(config: Config, **defaults: int) -> Fields:
    theirs = {
        "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
        "feedforward": "intermediate_size", "image": "image_size", "patch": "patch_size",
    }  # fmt: skip
    return {ours: config.get(theirs[ours], value) for ours, value in defaults.items()}


# Pixels of a side of an image where the tower takes any size, near a photograph's in the models' examples.
_IMAGE: Final = 448


def _qwen_vision(config: Config, hidden: int, width: int, feedforward: int) -> Fields:
    merge, patch = config.get("spatial_merge_size", 2), config.get("patch_size", 14)
    side = merge * patch
    projector = {"merge": merge, "width": width * merge**2, "norm": "layer"}
    return {
        "layers": config.get("depth", 32), "hidden": width, "heads": config.get("num_heads", 16), "feedforward": feedforward,
        "image": _IMAGE // side * side, "patch": patch, "frames": config.get("temporal_patch_size", 2), "positions": "rotary",
        "projector": projector,
    }  # fmt: skip


def _qwen2_vision(config: Config, hidden: int) -> Fields:
    width = config.get("embed_dim", 1280)
    return _qwen_vision(config, hidden, width, int(config.get("mlp_ratio", 4) * width))


def _qwen25_vision(config: Config, hidden: int) -> Fields:
    """As before, with gated MLPs, RMS norms and windows of 112 pixels in all blocks but some."""
    fields = _qwen_vision(config, hidden, config.get("hidden_size", 1280), config.get("intermediate_size", 3420))
    side = config.get("window_size", 112) // fields["patch"]
    whole = len(config.get("fullatt_block_indexes", (7, 15, 23, 31)))
    changes = {"activation": "swiglu", "norm": "rms", "window": side**2, "global_blocks": whole}
    return fields | changes | {"projector": fields["projector"] | {"norm": "rms"}}


_IMAGES: Final[dict[str, _Images]] = {
    "llava": _Images("llama", _clip),
    "qwen2_vl": _Images("qwen2", _qwen2_vision),
    "qwen2_5_vl": _Images("qwen2", _qwen25_vision),
    "gemma3": _Images("gemma3_text", _siglip),
}

_FAMILIES: Final[dict[str, _Family]] = {
    "llama": _Family(Llama, _LLAMA, _GROUPED, _llama),
    "mistral": _Family(Llama, _LLAMA, _MISTRAL, defaults={"num_key_value_heads": 8, "sliding_window": 4096}),
    "mixtral": _Family(
        Llama,
        {
            **_SIZES,
            "experts.feedforward": "intermediate_size",
            "experts.count": "num_local_experts",
            "experts.active": "num_experts_per_tok",
        },
        _MISTRAL,
        defaults={"num_key_value_heads": 8},
    ),
    "qwen2": _Family(Llama, _LLAMA, _GROUPED, _qwen2),
    "qwen3": _Family(Llama, _LLAMA, _GROUPED, _qwen3, defaults={"head_dim": 128}),
    "qwen3_moe": _Family(
        Llama,
        {
            **_LLAMA,
            "experts.feedforward": "moe_intermediate_size",
            "experts.count": "num_experts",
            "experts.active": "num_experts_per_tok",
        },
        _GROUPED,
        _qwen3,
        supported={"decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "deepseek_v3": _Family(
        Llama,
        {
            **_LLAMA,
            "experts.feedforward": "moe_intermediate_size",
            "experts.count": "n_routed_experts",
            "experts.active": "num_experts_per_tok",
            "latent.key_rank": "kv_lora_rank",
            "latent.width": "qk_nope_head_dim",
            "latent.rotary_width": "qk_rope_head_dim",
            "latent.value_width": "v_head_dim",
        },
        {
            "key_heads": "num_key_value_heads",
            "tied": "tie_word_embeddings",
            "experts.shared": "n_shared_experts",
            "experts.dense_layers": "first_k_dense_replace",
            "experts.groups": "n_group",
            "experts.active_groups": "topk_group",
            "latent.query_rank": "q_lora_rank",
        },
        supported={"moe_layer_freq": 1},
    ),
    "gemma": _Family(
        Llama, _LLAMA, _GROUPED, lambda config: {"activation": "geglu"}, defaults={"head_dim": 256, "tie_word_embeddings": True}
    ),
    "gemma2": _Family(
        Llama,
        _LLAMA,
        _MISTRAL,
        _gemma2,
        defaults={"head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096},
    ),
    "gemma3_text": _Family(
        Llama,
        _LLAMA,
        _MISTRAL,
        _gemma3,
        defaults={"head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096, "vocab_size": 262208},
    ),
    "phi3": _Family(Llama, _LLAMA, _MISTRAL),
    "phi": _Family(Gpt, _LLAMA, _GROUPED, _phi, supported={"qk_layernorm": False}),
    "falcon": _Family(
        Gpt,
        _SIZES,
        {"feedforward": "ffn_hidden_size", "tied": "tie_word_embeddings"},
        _falcon,
        supported={"alibi": False},
        defaults={"max_position_embeddings": 2048, "tie_word_embeddings": True},
    ),
    "olmo2": _Family(Llama, _LLAMA, _GROUPED, lambda config: {"norms": "after", "head_norms": "whole"} | _llama(config)),
    "glm": _Family(Llama, _LLAMA, _GROUPED, _llama, defaults={"attention_bias": True}),
    "glm4": _Family(
        Llama, _LLAMA, _GROUPED, lambda config: {"norms": "around"} | _llama(config), defaults={"attention_bias": True}
    ),
    "granite": _Family(Llama, _LLAMA, _GROUPED, _llama),
    "stablelm": _Family(Llama, _LLAMA, _GROUPED, _stablelm, supported={"qk_layernorm": False, "use_parallel_residual": False}),
    "gpt_oss": _Family(
        Llama, _SIZES, _MISTRAL, _gpt_oss, defaults={"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128}
    ),
    "mamba2": _Family(
        Llama,
        {name: _SIZES[name] for name in ("layers", "hidden", "vocabulary", "sequence")},
        {"tied": "tie_word_embeddings"},
        _mamba2,
        # a recurrence has no longest sequence
        defaults={"max_position_embeddings": 4096, "n_groups": 8, "state_size": 128},
    ),
    "nemotron_h": _Family(Llama, _LLAMA, _GROUPED, _nemotron_h),
    "jamba": _Family(
        Llama,
        _LLAMA,
        _GROUPED,
        _jamba,
        defaults={
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_expand": 2,
            "mamba_d_state": 16,
            "mamba_dt_rank": 256,
        },
    ),
    "qwen3_next": _Family(
        Llama,
        _SIZES,
        _GROUPED,
        _qwen3_next,
        supported={"decoder_sparse_step": 1},
        defaults={"full_attention_interval": 4},
    ),
    "gpt2": _Family(
        Gpt,
        {
            "layers": "n_layer",
            "hidden": "n_embd",
            "heads": "n_head",
            "vocabulary": "vocab_size",
            "sequence": "n_positions",
            "position_rows": "n_positions",
        },
        {"feedforward": "n_inner"},
        flags={"tied": ("tie_word_embeddings", True), "dropout": ("resid_pdrop", True)},
        equal={"n_ctx": "n_positions"},
    ),
    "gpt_neox": _Family(
        Gpt,
        _LLAMA,
        {"tied": "tie_word_embeddings"},
        lambda config: {"positions": "rotary"},
        {"parallel": ("use_parallel_residual", True), "dropout": ("hidden_dropout", False)},
        supported={"attention_bias": True},
    ),
    "bert": _Family(
        Bert,
        {**_LLAMA, "position_rows": "max_position_embeddings"},
        {"token_types": "type_vocab_size"},
        flags={"dropout": ("hidden_dropout_prob", True)},
    ),
    "t5": _Family(
        T5,
        {
            "layers": "num_layers",
            "hidden": "d_model",
            "heads": "num_heads",
            "head_width": "d_kv",
            "feedforward": "d_ff",
            "vocabulary": "vocab_size",
        },
        {"sequence": "n_positions", "position_buckets": "relative_attention_num_buckets"},
        _t5,
        {"tied": ("tie_word_embeddings", True), "dropout": ("dropout_rate", True)},
        {"num_decoder_layers": "num_layers"},
    ),
}
