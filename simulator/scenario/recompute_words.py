"""Words of training software for recomputation: Megatron-LM's --recompute-granularity, --recompute-method,
--recompute-num-layers and --recompute-modules, torchtitan's section activation_checkpoint, and Hugging Face's
gradient_checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

# Megatron's methods, and the fields that its number of layers goes to.
_METHODS: Final = {"uniform": "group", "block": "layers"}
# Modes of torchtitan, other than those that are called the same.
OP: Final = {"products": "every_second"}
BUDGET: Final = "a compiler chooses what a memory budget recomputes, which is not modelled; give selective or full"


class UnknownWordError(ValueError):
    """A value that stands for no recomputation, with what to give instead."""


def _megatron(words: Mapping[str, Any], before: Any) -> Any:
    """The recomputation that Megatron's options name. before: that of options that came earlier."""
    granularity, method = words.get("recompute_granularity"), words.get("recompute_method")
    modules = words.get("recompute_modules")
    if granularity not in (None, "none", "selective", "full"):
        raise UnknownWordError(f"recompute_granularity: {granularity!r} is not known; give selective or full")
    if method not in (None, *_METHODS):
        raise UnknownWordError(f"recompute_method: {method!r} is not known; give uniform or block")
    if granularity == "selective" or modules is not None:
        return {"modules": modules or ["core_attn"]}
    if not words.keys() - {"recompute_granularity"} and granularity != "full":
        return "none"
    earlier = before if isinstance(before, dict) else {}
    field = _METHODS[method] if method else next((name for name in _METHODS.values() if name in earlier), "group")
    count = words.get("recompute_num_layers") or next(iter(earlier.values()), 1)
    return "full" if (field, count) == ("group", 1) else {field: count}


def _torchtitan(words: Mapping[str, Any], _: Any) -> Any:
    """The recomputation that torchtitan's section names, or its mode alone."""
    given = words["activation_checkpoint"]
    section = given if isinstance(given, dict) else {"mode": given}
    if unknown := sorted(section.keys() - {"mode", "selective_ac_option"}):
        raise UnknownWordError(f"activation_checkpoint.{unknown[0]}: not known; give mode and selective_ac_option")
    mode, option = section.get("mode", "selective"), str(section.get("selective_ac_option", "op"))
    if mode in ("none", "full"):
        return mode
    if mode == "memory_budget":
        raise UnknownWordError(f"activation_checkpoint: {BUDGET}")
    if mode != "selective" or not (option == "op" or option.isdecimal()):
        raise UnknownWordError(
            "activation_checkpoint: give mode none, selective or full, and selective_ac_option op or a number"
        )
    return OP if option == "op" else {"every": int(option)}


def _hugging_face(words: Mapping[str, Any], _: Any) -> Any:
    """The recomputation of each block, or none, by a truth value."""
    ((name, value),) = words.items()
    if not isinstance(value, bool):
        raise UnknownWordError(f"{name}: {value!r} is not true or false; give one of them, or recompute")
    return "full" if value else "none"


# By the words that are read together, the function that reads them.
READERS: Final[dict[tuple[str, ...], Callable[[Mapping[str, Any], Any], Any]]] = {
    ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"): _megatron,
    ("activation_checkpoint",): _torchtitan,
    ("gradient_checkpointing",): _hugging_face,
    ("activation_checkpointing",): _hugging_face,
}
