"""Abbreviations that scenarios may use for fields and values, and the names that they stand for; among them words of training
software for recomputation: Megatron-LM's --recompute-granularity, --recompute-method, --recompute-num-layers and
--recompute-modules, torchtitan's section activation_checkpoint, and Hugging Face's gradient_checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from scaleproof.simulator.cluster.network.links import without_nics
from scaleproof.simulator.common.errors import FieldError, ScenarioError
from scaleproof.simulator.common.yaml_file import FieldPath, Located

# Megatron's methods, and the fields that its number of layers goes to.
_METHODS: Final = {"uniform": "group", "block": "layers"}
# Modes of torchtitan, other than those that are called the same.
_OP: Final = {"products": "every_second"}
_BUDGET: Final = "a compiler chooses what a memory budget recomputes, which is not modelled; give selective or full"


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
        raise UnknownWordError(f"activation_checkpoint: {_BUDGET}")
    if mode != "selective" or not (option == "op" or option.isdecimal()):
        raise UnknownWordError(
            "activation_checkpoint: give mode none, selective or full, and selective_ac_option op or a number"
        )
    return _OP if option == "op" else {"every": int(option)}


def _hugging_face(words: Mapping[str, Any], _: Any) -> Any:
    """The recomputation of each block, or none, by a truth value."""
    ((name, value),) = words.items()
    if not isinstance(value, bool):
        raise UnknownWordError(f"{name}: {value!r} is not true or false; give one of them, or recompute")
    return "full" if value else "none"


# By the words that are read together, the function that reads them.
RECOMPUTE_READERS: Final[dict[tuple[str, ...], Callable[[Mapping[str, Any], Any], Any]]] = {
    ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"): _megatron,
    ("activation_checkpoint",): _torchtitan,
    ("gradient_checkpointing",): _hugging_face,
    ("activation_checkpointing",): _hugging_face,
}


def recompute_of(word: Any) -> Any:
    """A value of `training.recompute`, with a word of torchtitan replaced. Raises UnknownWordError."""
    if word == "memory_budget":
        raise UnknownWordError(f"recompute: {_BUDGET}")
    return _OP if word == "op" else word


# By the abbreviated field, the field that it stands for.
FIELDS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("gbs",): ("batch", "total"),
    ("global_batch_size",): ("batch", "total"),
    ("batch", "gbs"): ("batch", "total"),
    ("batch", "global"): ("batch", "total"),
    ("dp",): ("strategy", "workers"),
    ("tp",): ("strategy", "tensor"),
    ("pp",): ("strategy", "stages"),
    ("strategy", "dp"): ("strategy", "workers"),
    ("strategy", "tp"): ("strategy", "tensor"),
    ("strategy", "pp"): ("strategy", "stages"),
    ("strategy", "vpp"): ("strategy", "chunks"),
    ("strategy", "cp"): ("strategy", "context"),
    ("strategy", "ep"): ("strategy", "expert"),
    ("strategy", "ga"): ("strategy", "microbatches"),
    ("strategy", "gradient_accumulation_steps"): ("strategy", "microbatches"),
    ("mbs",): ("strategy", "micro_batch_size"),
    ("micro_batch",): ("strategy", "micro_batch_size"),
    ("micro_batch_size",): ("strategy", "micro_batch_size"),
    ("strategy", "mbs"): ("strategy", "micro_batch_size"),
    ("batch", "mbs"): ("strategy", "micro_batch_size"),
    ("strategy", "zero"): ("training", "zero"),
    ("precision",): ("training", "precision"),
    ("optimizer",): ("training", "optimizer"),
}
# By field, abbreviated values and what they stand for.
VALUES: Final[dict[FieldPath, dict[str, str]]] = {
    ("training", "optimizer"): {"adamw": "adam"},
    ("training", "precision"): {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    ("strategy", "kind"): {"ps": "parameter_server", "pp": "pipeline", "3d": "hybrid"},
}
# By names of formats, the precision and the field with the recipe that they are.
_FORMATS: Final = {
    "mxfp8": ("fp8", "fp8_recipe"), "nvfp4": ("fp4", "fp4_recipe"), "mxfp4": ("fp4", "fp4_recipe"),
}  # fmt: skip
# Names of data parallelism and the stage of ZeRO that they imply.
_SHARDING: Final = {"ddp": 0, "fsdp": 3}
# Degrees of parallelism inside a worker, with which data parallelism is a hybrid.
DEGREES: Final = ("tensor", "stages", "context", "expert")
_KIND: Final = ("strategy", "kind")


def canonical(path: tuple[str, ...]) -> tuple[str, ...]:
    """The field that a path with abbreviations stands for."""
    for length in (2, 1):
        if path[:length] in FIELDS:
            return FIELDS[path[:length]] + path[length:]
    return path


def canonical_text(path: str) -> str:
    """The field that a path such as 'tp' stands for: 'strategy.tensor'."""
    return ".".join(canonical(tuple(path.split("."))))


def expand(located: Located) -> None:
    """Replaces abbreviated fields and values of a scenario by what they stand for.

    Raises ScenarioError if a field is given twice, if FSDP or DDP contradicts the stage of ZeRO, or a format its recipe, and
    for words of recomputation that are not known.
    """
    for short, full in FIELDS.items():
        parent = _mapping(located.data, short[:-1])
        if parent is not None and short[-1] in parent:
            _move(located, short, full, parent.pop(short[-1]))
    for path, meanings in VALUES.items():
        parent = _mapping(located.data, path[:-1])
        value = None if parent is None else parent.get(path[-1])
        if parent is not None and isinstance(value, str) and value.lower() in meanings:
            parent[path[-1]] = meanings[value.lower()]
    _expand_format(located)
    _expand_recompute(located)
    _expand_sharding(located)
    _expand_nics(located)


def _expand_format(located: Located) -> None:
    """Replaces `precision: nvfp4` by the precision and its recipe."""
    training = _mapping(located.data, ("training",))
    name = None if training is None else training.get("precision")
    if training is None or not isinstance(name, str) or name.lower() not in _FORMATS:
        return
    precision, field = _FORMATS[name.lower()]
    training["precision"] = precision
    if training.setdefault(field, name.lower()) != name.lower():
        where = located.place(("training", "precision"))
        raise ScenarioError([f"{where}: training.precision: {name} is not {field} {training[field]}; leave one out"])
    located.places.setdefault(("training", field), located.place(("training", "precision")))


def _expand_recompute(located: Located) -> None:
    """Replaces words of training software for recomputation by `training.recompute`; those of overrides replace it."""
    training = _mapping(located.data, ("training",))
    if training is None:
        return
    for names, read in RECOMPUTE_READERS.items():
        words = {name: training.pop(name) for name in names if name in training}
        if not words:
            continue
        first = next(iter(words))
        where = located.place(("training", first))
        if "recompute" in training and not where.startswith("--set"):
            raise ScenarioError([f"{where}: training.{first}: means training.recompute, which is also given; leave one out"])
        training["recompute"] = _read_words(where, read, words, training.get("recompute"))
        located.places["training", "recompute"] = where
    if "recompute" in training:
        where = located.place(("training", "recompute"))
        training["recompute"] = _read_words(where, recompute_of, training["recompute"])


def _read_words(where: str, read: Callable[..., Any], *given: Any) -> Any:
    """The result of `read`. Raises ScenarioError with the place of a word that is not known."""
    try:
        return read(*given)
    except UnknownWordError as error:
        raise ScenarioError([f"{where}: training.{error}"]) from None


def _expand_nics(located: Located) -> None:
    """Replaces network cards by the bandwidth of a node and the number of its cards."""
    nics, bandwidth = (("cluster", "network", name) for name in ("nics", "bandwidth"))
    if "nics" not in (_mapping(located.data, nics[:2]) or {}):
        return
    try:
        located.data["cluster"] = without_nics(located.data["cluster"])
    except FieldError as error:
        field = ("cluster", *error.field)
        raise ScenarioError([f"{located.place(field)}: {'.'.join(map(str, field))}: {error.message}"]) from None
    located.places[bandwidth] = located.places.pop(nics, located.place(nics))


def implies_sharding(strategy: Any) -> bool:
    """Whether a strategy, or the name of one, is FSDP or DDP, which imply a stage of ZeRO."""
    kind = strategy.get("kind") if isinstance(strategy, dict) else strategy
    return isinstance(kind, str) and kind.lower() in _SHARDING


def _expand_sharding(located: Located) -> None:
    """Replaces `kind: ddp` or `kind: fsdp` by data parallelism, or by a hybrid if other degrees are given, and ZeRO's stage.

    The abbreviation gets a place of its own, because degrees may be added later.
    """
    strategy = _mapping(located.data, _KIND[:1])
    if strategy is None:
        return
    if implies_sharding(strategy):
        _check_stage(located, strategy["kind"])
        located.places[*_KIND, strategy["kind"].lower()] = located.place(_KIND)
        strategy["kind"] = "data_parallel"
    for name, stage in _SHARDING.items():
        if (*_KIND, name) in located.places:
            strategy["kind"] = "hybrid" if any(degree in strategy for degree in DEGREES) else "data_parallel"
            training = located.data.setdefault("training", {})
            if isinstance(training, dict) and "zero" not in training:
                training["zero"] = stage
                located.places["training", "zero"] = located.places[*_KIND, name]


def _check_stage(located: Located, kind: str) -> None:
    """Raises ScenarioError if FSDP or DDP contradicts the stage of ZeRO that is given."""
    training, stage = _mapping(located.data, ("training",)) or {}, _SHARDING[kind.lower()]
    if (zero := training.get("zero", stage)) != stage:
        message = f"strategy.kind: {kind} is training.zero: {stage}, but zero is {zero}; leave one out"
        raise ScenarioError([f"{located.place(_KIND)}: {message}"])


def _mapping(data: Any, path: FieldPath) -> dict[Any, Any] | None:
    """The mapping at a path; None if there is no mapping."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else None


def _move(located: Located, short: FieldPath, full: FieldPath, value: Any) -> None:
    """Gives the value of an abbreviated field to the field that it stands for, with its places."""
    parent = located.data
    for key in full[:-1]:
        parent = parent.setdefault(key, {})
        if not isinstance(parent, dict):
            names = ".".join(map(str, short)), ".".join(map(str, full[:-1]))
            raise ScenarioError([f"{located.place(short)}: {names[0]}: cannot be added to {names[1]}; write a mapping there"])
    if full[-1] in parent:
        names = ".".join(map(str, short)), ".".join(map(str, full))
        raise ScenarioError([f"{located.place(short)}: {names[0]}: means {names[1]}, which is also given; leave one out"])
    parent[full[-1]] = value
    for path in [path for path in located.places if path[: len(short)] == short]:
        located.places[full + path[len(short) :]] = located.places.pop(path)
