"""A published fine-tuning run as a scenario: only what a user could have written, and what had to be assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model.layers import has_operator
from scaleproof.simulator.published.clusters import device_named
from scaleproof.simulator.published.tables import Row
from scaleproof.simulator.published.training_runs import software_of
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model
from scaleproof.simulator.scenario.schema import Scenario

# What a blank is taken for, by column. LitGPT's and PEFT's adapters are of queries and values, with rank 8.
_ASSUMED: Final = {
    "rank": "8", "targets": "q,v", "precision": "bf16", "optimizer": "AdamW", "micro_batch": "1", "grad_accum": "1",
    "nodes": "1", "activation_checkpointing": "no", "strategy": "single", "gpu": "A100-80GB-SXM",
}  # fmt: skip
_METHODS: Final = {"full": None, "lora": "lora", "qlora": "lora", "dora": "dora", "qdora": "dora"}
# Words of the column targets that are not names of products.
_TARGETS: Final = {"mlp": ("gate", "up", "down"), "proj": ("o",), "all linear": ("all-linear",), "all-linear": ("all-linear",)}
_BASES: Final = {"nf4": "nf4", "int4": "nf4", "fp4": "nf4", "4-bit": "nf4", "int8": "int8", "8-bit": "int8", "fp8": "fp8"}
_OPTIMIZERS: Final = {
    "adamw": "adam", "adam": "adam", "sgd": "sgd", "lion": "lion", "adafactor": "adafactor", "adagrad": "adagrad",
}  # fmt: skip
# The cluster that ships whose nodes are usual for a device, where several of them train.
_NODES: Final = {
    "rtx-3090": "workstation-2x3090", "rtx-4090": "8x4090-pcie", "a10g": "aws-g5", "l4": "aws-g6", "a100-80gb-sxm": "dgx-a100",
    "a100-40gb-sxm": "dgx-a100-40gb", "h100-80gb-sxm": "dgx-h100", "h200-141gb-sxm": "h200-cluster",
    "v100-32gb-sxm2": "dgx1-v100",
}  # fmt: skip
Reported = Literal["allocated_bytes", "reserved_bytes", "total_bytes"]


@dataclass(frozen=True)
class FineTuningRun:
    """A row's scenario. passes: measured times are of a step divided by this. reported: which of `RankMemory`'s figures the
    row's memory is; None if that of the framework. lengths: whether samples have different lengths, of which the scenario has
    the longest. assumed: columns that were blank, or named what is not known."""

    scenario: Scenario
    passes: int
    reported: Reported | None
    lengths: bool
    assumed: tuple[str, ...]


def fine_tuning_run(row: Row, named: bool = True) -> FineTuningRun:
    """The scenario of a row of fine_tuning.csv.

    named: whether the scenario names the row's framework; else it leaves that to the default. Raises InputError where the row
    lacks what a scenario needs or says what is not modelled, and ScaleproofError where the scenario is not valid.
    """
    known = {column: value for column, value in _ASSUMED.items() if not row.get(column)}
    if row["method"] == "full":
        known = {column: value for column, value in known.items() if column not in ("rank", "targets")}
    assumed = list(known)
    row = {**row, **known}
    software = software_of(row) or {}
    if not software:
        assumed.append("software")
    length = re.search(r"longest (\d+)|at most (\d+)|^(\d+)", row["seq_len"])
    if length is None:
        raise InputError(f"samples of unknown length: {row['seq_len'] or 'not stated'}")
    accumulated = int(row["grad_accum"])
    model = load_model(model_named(row["model"]))
    training, batch = (
        _training(row, has_operator(model, "swiglu") or has_operator(model, "geglu")),
        int(row["micro_batch"]) * accumulated,
    )
    workers = int(row["gpus"])
    parts: dict[str, Any] = {
        "name": row["id"],
        "model": {"base": model.name, "sequence": int(next(filter(None, length.groups())))},
        "cluster": _cluster(row, assumed),
        "strategy": {"kind": "hybrid", "workers": workers, "microbatches": accumulated},
        "batch": {"total": batch * workers},
        "training": _with_defaults(training, software.get("training", {})),
    }
    if named and software:
        parts["framework"] = software["framework"]
    per_pass = "micro-batch" in row["step_is"] and not row["step_is"].startswith("optimizer step")
    return FineTuningRun(
        load(parts), accumulated if per_pass else 1, _reported(row["memory_kind"]), not row["seq_len"].isdigit(), tuple(assumed)
    )


def _with_defaults(training: dict[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """With what the row's software does where the row says nothing; of adapters only where there are some."""
    found = {"autocast": False, **usual, **training}
    if "adapters" in training:
        found["adapters"] = {**usual.get("adapters", {}), **training["adapters"]}
    else:
        found.pop("adapters", None)
    return found


def model_named(words: str) -> str:
    """The name of the model that ships whose name begins with what a table calls it, or the other way round. Raises
    InputError."""
    wanted = _compact(words)
    names = {name: _compact(name) for name in catalog.names("models")}
    within = [name for name, compact in names.items() if wanted.startswith(compact)]
    around = [name for name, compact in names.items() if compact.startswith(wanted)]
    if within:
        return max(within, key=len)
    if len(around) == 1:
        return around[0]
    raise InputError(f"no model that ships is called {words}")


def _compact(words: str) -> str:
    """Letters and digits of a model's name, without words that say how it was trained."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\b(base|instruct|chat|hf)\b", "", words.lower()))


def _cluster(row: Row, assumed: list[str]) -> dict[str, Any]:
    """One device, or nodes as usual for it."""
    device, devices, nodes = device_named(row["gpu"]), int(row["gpus"]), int(row["nodes"])
    if devices == 1:
        return {"name": row["gpu"], "nodes": 1, "node": {"devices": 1}, "device": device}
    if device not in _NODES:
        raise InputError(f"no node with several {row['gpu']} ships")
    assumed.append("interconnect")
    return {"base": _NODES[device], "nodes": nodes, "node": {"devices": devices // nodes}}


def _training(row: Row, is_gated: bool) -> dict[str, Any]:
    method, precision, base = row["method"], row["precision"].lower(), row["base_precision"].lower()
    if method not in _METHODS:
        raise InputError(f"{method} is not modelled")
    optimizer = re.sub(r"[^a-z].*", "", row["optimizer"].lower())
    if optimizer not in _OPTIMIZERS or "lora-fa" in row["optimizer"].lower():
        raise InputError(f"optimizer {row['optimizer']} is not modelled")
    bits = re.match(r"bf(?:loat)?16|fp?(?:loat)?16|f(?:p|loat)?32|tf32", precision)
    if bits is None:
        raise InputError(f"unknown precision: {precision}")
    name = bits[0].replace("float", "fp") if not bits[0].startswith("b") else "bf16"
    # PEFT leaves the 16-bit norms of GPTQ's models as they are (prepare_model_for_kbit_training)
    is_narrow = "gptq" in base
    mixed = "mixed" in precision or (name == "fp16" and not is_narrow)
    deepspeed = "deepspeed" in row["software"].lower()
    found: dict[str, Any] = {
        "precision": name, "optimizer": _OPTIMIZERS[optimizer],
        "master": mixed or deepspeed or name == "fp16",
        "recompute": "full" if row["activation_checkpointing"] in ("full", "yes") else "none",
    }  # fmt: skip
    if mixed:
        found["autocast"] = True
    if "8-bit" in row["optimizer"].lower() or "8bit" in row["optimizer"].lower():
        found["state_bits"] = 8
    sharded = re.search(r"fsdp|zero[- ]?(\d)?", row["strategy"].lower())
    if sharded:
        found["zero"] = int(sharded[1] or (3 if sharded[0] == "fsdp" else 1))
    if row["offload"] not in ("", "none"):
        found["offload"] = [word for word in re.split(r"[^a-z]+", row["offload"]) if word]
    if _METHODS[method]:
        found["adapters"] = _adapters(row, is_gated) | {"kind": _METHODS[method]} | ({"precision": "fp32"} if is_narrow else {})
        found |= _base(base)
    return found


def _adapters(row: Row, is_gated: bool) -> dict[str, Any]:
    words = row["targets"].lower().partition("+")[0].strip()
    names = [name for word in re.split(r",\s*", words) for name in _TARGETS.get(word, (word,)) if is_gated or name != "gate"]
    found: dict[str, Any] = {"rank": int(row["rank"]), "targets": names}
    if "embedding and output" in row["targets"]:
        found["modules_to_save"] = ["embedding", "head"]
    if "fp32 adapters" in row["precision"]:
        found["precision"] = "fp32"
    return found


def _base(words: str) -> dict[str, Any]:
    base = next((base for word, base in _BASES.items() if word in words), None)
    if base is None:
        return {"base_precision": "fp32"} if "fp32" in words else {}
    return {"base_precision": base, "double_quantization": "double" in words}


def _reported(kind: str) -> Reported | None:
    for word, figure in (("reserved", "reserved_bytes"), ("allocated", "allocated_bytes"), ("active", "allocated_bytes")):
        if word in kind:
            return figure  # type: ignore[return-value]
    return "total_bytes" if "smi" in kind else None
