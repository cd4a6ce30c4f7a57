"""Abbreviations that scenarios may use for fields and values, and the names that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from scaleproof.simulator.cluster.network.links import without_nics
from scaleproof.simulator.common.errors import FieldError, ScenarioError
from scaleproof.simulator.common.yaml_file import FieldPath, Located
from scaleproof.simulator.scenario.recompute_words import BUDGET, OP, READERS, UnknownWordError

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
    ("batch", "shares"): ("strategy", "shares"),
    ("strategy", "zero"): ("training", "zero"),
    ("training", "lora"): ("training", "adapters"),
    ("precision",): ("training", "precision"),
    ("optimizer",): ("training", "optimizer"),
}
# By field, abbreviated values and what they stand for.
VALUES: Final[dict[FieldPath, dict[str, str]]] = {
    ("training", "optimizer"): {"adamw": "adam", "adamw_torch": "adam", "adamw_torch_fused": "adam", "adamw_hf": "adam"},
    ("training", "precision"): {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    ("strategy", "kind"): {"ps": "parameter_server", "pp": "pipeline", "3d": "hybrid"},
}
# By names of formats, the precision and the field with the recipe that they are.
_FORMATS: Final = {
    "mxfp8": ("fp8", "fp8_recipe"), "nvfp4": ("fp4", "fp4_recipe"), "mxfp4": ("fp4", "fp4_recipe"),
}  # fmt: skip
# Names of optimizers with the bits of their states, as Hugging Face's Trainer has them. Paged states stay on the device while
# they fit.
_STATES: Final = {
    f"{prefix}{name}{suffix}": (optimizer, bits)
    for name, optimizer in (("adamw", "adam"), ("lion", "lion"))
    for prefix in ("", "paged_")
    for suffix, bits in (("_8bit", 8), ("_32bit", 32), *([("", 32)] if prefix else []))
} | {"adamw_bnb_8bit": ("adam", 8), "lamb_8bit": ("lamb", 8), "momentum_8bit": ("momentum", 8)}
# By words for adapters, their kind, and the precision of frozen parameters. ADAPTER_RANK: of adapters that are given by a word.
ADAPTERS: Final[dict[str, tuple[str, str | None]]] = {"lora": ("lora", None), "dora": ("dora", None), "qlora": ("lora", "nf4")}
ADAPTER_RANK: Final = 16
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


def field_set_by(override: str) -> str:
    """The field that an override such as 'tp=4' sets: 'strategy.tensor'."""
    return canonical_text(override.partition("=")[0])


def expand(located: Located) -> None:
    """Replaces abbreviated fields and values of a scenario by what they stand for; `batch: 256` means `{total: 256}`, and
    `strategy: data_parallel` means `{kind: data_parallel}`.

    Raises ScenarioError if a field is given twice, if FSDP or DDP contradicts the stage of ZeRO, or a format its recipe, and
    for words of recomputation that are not known.
    """
    for key, inner, kinds in (("batch", "total", (int, float, str)), ("strategy", "kind", (str,))):
        value = located.data.get(key)
        if isinstance(value, kinds) and not isinstance(value, bool):
            located.data[key] = {inner: value}
    for short, full in FIELDS.items():
        parent = located.mapping(short[:-1])
        if short[-1] in parent:
            _move(located, short, full, parent.pop(short[-1]))
    for path, meanings in VALUES.items():
        parent = located.mapping(path[:-1])
        value = parent.get(path[-1])
        if isinstance(value, str) and value.lower() in meanings:
            parent[path[-1]] = meanings[value.lower()]
    _expand_lengths(located, located.mapping(("model",)))
    _expand_format(located, located.mapping(("training",)))
    _expand_states(located, located.mapping(("training",)))
    _expand_adapters(located, located.mapping(("training",)))
    _expand_recompute(located, located.mapping(("training",)))
    _expand_sharding(located, located.mapping(("strategy",)))
    _expand_nics(located)


def _expand_lengths(located: Located, model: dict[Any, Any]) -> None:
    """Replaces `model.sequence: {distribution: …, max: 2048}` by the longest sample and `batch.lengths`."""
    given, path = model.get("sequence"), ("model", "sequence")
    if not isinstance(given, dict):
        return
    lengths = dict(given)
    if "max" not in lengths:
        raise located.refused(path, "max: missing; give the tokens to which longer samples are cut")
    batch = located.data.setdefault("batch", {})
    if isinstance(batch, dict) and batch.setdefault("lengths", lengths) is not lengths:
        raise located.refused(path, "means batch.lengths, which is also given; leave one out")
    model["sequence"] = lengths.pop("max")
    located.places.setdefault(("batch", "lengths"), located.place(path))


def _expand_format(located: Located, training: dict[Any, Any]) -> None:
    """Replaces `precision: nvfp4` by the precision and its recipe."""
    name, path = training.get("precision"), ("training", "precision")
    if not isinstance(name, str) or name.lower() not in _FORMATS:
        return
    training["precision"], field = _FORMATS[name.lower()]
    if training.setdefault(field, name.lower()) != name.lower():
        raise located.refused(path, f"{name} is not {field} {training[field]}; leave one out")
    located.places.setdefault(("training", field), located.place(path))


def _expand_states(located: Located, training: dict[Any, Any]) -> None:
    """Replaces `optimizer: adamw_8bit` by the optimizer and the bits of its states."""
    name, path, field = training.get("optimizer"), ("training", "optimizer"), ("training", "state_bits")
    if not isinstance(name, str) or name.lower() not in _STATES:
        return
    training["optimizer"], bits = _STATES[name.lower()]
    if training.setdefault("state_bits", bits) != bits:
        raise located.refused(path, f"{name} has states of {bits} bits, not {training['state_bits']}; leave one out")
    located.places.setdefault(field, located.place(path))


def _expand_adapters(located: Located, training: dict[Any, Any]) -> None:
    """Replaces `adapters: qlora` by adapters of rank 16 and the precision of frozen parameters, and a number by LoRA of this
    rank. The kind may be such a word."""
    given, path = training.get("adapters"), ("training", "adapters")
    if isinstance(given, int) and not isinstance(given, bool):
        training["adapters"] = {"kind": "lora", "rank": given}
        return
    word = given.get("kind") if isinstance(given, dict) else given
    if not isinstance(word, str) or word.lower() not in ADAPTERS:
        return
    kind, base = ADAPTERS[word.lower()]
    training["adapters"] = given | {"kind": kind} if isinstance(given, dict) else {"kind": kind, "rank": ADAPTER_RANK}
    if base is None:
        return
    if training.setdefault("base_precision", base) != base:
        raise located.refused(path, f"{word} has a base_precision of {base}, not {training['base_precision']}; leave one out")
    located.places.setdefault(("training", "base_precision"), located.place(path))


def _expand_recompute(located: Located, training: dict[Any, Any]) -> None:
    """Replaces words of training software for recomputation by `training.recompute`; those of overrides replace it."""
    path = ("training", "recompute")
    for names, read in READERS.items():
        words = {name: training.pop(name) for name in names if name in training}
        if not words:
            continue
        first = ("training", next(iter(words)))
        if "recompute" in training and not located.place(first).startswith("--set"):
            raise located.refused(first, "means training.recompute, which is also given; leave one out")
        located.places[path] = located.place(first)
        training["recompute"] = _read_words(located, read, words, training.get("recompute"))
    word = training.get("recompute")
    if word == "memory_budget":
        raise located.refused(path, BUDGET)
    if word == "op":
        training["recompute"] = OP


def _read_words(located: Located, read: Callable[[Mapping[str, Any], Any], Any], words: Mapping[str, Any], before: Any) -> Any:
    """The recomputation that words name. Raises ScenarioError with the place of a word that is not known."""
    try:
        return read(words, before)
    except UnknownWordError as error:
        raise ScenarioError([f"{located.place(('training', 'recompute'))}: training.{error}"]) from None


def implies_sharding(strategy: Any) -> bool:
    """Whether a strategy, or the name of one, is FSDP or DDP, which imply a stage of ZeRO."""
    kind = strategy.get("kind") if isinstance(strategy, dict) else strategy
    return isinstance(kind, str) and kind.lower() in _SHARDING


def _expand_sharding(located: Located, strategy: dict[Any, Any]) -> None:
    """Replaces `kind: ddp` or `kind: fsdp` by data parallelism, or by a hybrid if other degrees are given, and ZeRO's stage.

    The abbreviation gets a place of its own, because degrees may be added later.
    """
    if implies_sharding(strategy):
        kind = strategy["kind"]
        stage = _SHARDING[kind.lower()]
        if (zero := located.mapping(("training",)).get("zero", stage)) != stage:
            raise located.refused(_KIND, f"{kind} is training.zero: {stage}, but zero is {zero}; leave one out")
        located.places[*_KIND, kind.lower()] = located.place(_KIND)
        strategy["kind"] = "data_parallel"
    for name, stage in _SHARDING.items():
        if strategy and (*_KIND, name) in located.places:
            strategy["kind"] = "hybrid" if any(degree in strategy for degree in DEGREES) else "data_parallel"
            training = located.data.setdefault("training", {})
            if isinstance(training, dict) and "zero" not in training:
                training["zero"] = stage
                located.places["training", "zero"] = located.places[*_KIND, name]


def _expand_nics(located: Located) -> None:
    """Replaces network cards by the bandwidth of a node and the number of its cards."""
    nics, bandwidth = ("cluster", "network", "nics"), ("cluster", "network", "bandwidth")
    if "nics" not in located.mapping(nics[:2]):
        return
    try:
        located.data["cluster"] = without_nics(located.data["cluster"])
    except FieldError as error:
        raise located.refused(("cluster", *error.field), error.message) from None
    located.places[bandwidth] = located.places.pop(nics, located.place(nics))


def _move(located: Located, short: FieldPath, full: FieldPath, value: Any) -> None:
    """Gives the value of an abbreviated field to the field that it stands for, with its places."""
    parent = located.data
    for key in full[:-1]:
        parent = parent.setdefault(key, {})
        if not isinstance(parent, dict):
            raise located.refused(short, f"cannot be added to {'.'.join(map(str, full[:-1]))}; write a mapping there")
    if full[-1] in parent:
        raise located.refused(short, f"means {'.'.join(map(str, full))}, which is also given; leave one out")
    parent[full[-1]] = value
    for path in located.below(short):
        located.places[full + path[len(short) :]] = located.places.pop(path)
