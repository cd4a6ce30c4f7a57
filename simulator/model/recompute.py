"""Activation recomputation: activations that the forward pass drops and the backward pass computes again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, WithJsonSchema, model_validator

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Exchange, Matmul, Operator, SavedActivation, Scan

# Megatron-Core's names of --recompute-modules (megatron/core/transformer/transformer_config.py, recompute_modules), and
# `activation`: the activation functions of all MLPs, experts included.
ModuleName = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts", "activation"]
# Activations that attention and its output projection keep.
# Name of the saved activations that layers read.
READ: Final = "input"
_ATTENTION_KEPT: Final = ("attention output", "attention statistics", "projection input")


class Recompute(Spec):
    """The layers or modules to recompute: `none`, `selective` or `full`, or a mapping with one of the fields below.

    full: each block from its input (Megatron-Core's `uniform` method with one layer). selective: what the framework calls so,
    or else only the core of attention (arXiv 2205.05198, section 5). Embeddings, stems and heads are never recomputed.
    """

    kind: Literal["none", "selective", "full"] = "none"
    group: Count = Field(1, description="full: consecutive blocks recomputed together from the input of the first (uniform)")
    every: Count = Field(1, description="full: only every n-th block of a stage is recomputed")
    layers: Count | None = Field(None, description="full: only the first n blocks of each stage are recomputed")
    modules: tuple[ModuleName, ...] = Field(
        (), description="selective: these modules of each block; if absent, what the framework calls selective, else core_attn"
    )
    products: Literal["every_second"] | None = Field(
        None, description="selective: every second product with weights, and all other operators except attention"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        if isinstance(value, dict) and "kind" not in value:
            kinds = {_KIND_OF[field] for field in value if field in _KIND_OF}
            return {"kind": kinds.pop(), **value} if len(kinds) == 1 else value
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        given = [field for field in _KIND_OF if getattr(self, field) != type(self).model_fields[field].default]
        for field in given:
            if self.kind != _KIND_OF[field]:
                raise ValueError(f"{field}: goes with kind {_KIND_OF[field]}, not {self.kind}; leave either out")
        if len(given) > 1:
            raise ValueError(f"{given[1]}: {given[0]} is given as well; leave one of them out")
        if len(set(self.modules)) < len(self.modules):
            raise ValueError("modules: one is named twice; leave it out")
        return self

    @property
    def is_named(self) -> bool:
        """Whether it is `selective` by name, so that the framework decides what is recomputed."""
        return self.kind == "selective" and not {"modules", "products"} & self.model_fields_set

    def meant_by(self, selective: Recompute) -> Recompute:
        """The recomputation with a framework's meaning of `selective`, where that is all that is given; it stays so named."""
        return self.defaulted({"modules": selective.modules, "products": selective.products}) if self.is_named else self

    @property
    def meaning(self) -> str:
        """The recomputation without a name that depends on the framework: '{products: every_second}'."""
        if not self.is_named:
            return str(self)
        given = {"products": self.products} if self.products is not None else {"modules": tuple(self.module_names)}
        return str(Recompute.model_validate(given))

    @property
    def shorthand(self) -> str | dict[str, Any]:
        """The value as it is written in scenarios."""
        if self.is_named:
            return self.kind
        for field in _KIND_OF:
            if (value := getattr(self, field)) != type(self).model_fields[field].default:
                return {field: list(value) if isinstance(value, tuple) else value}
        return self.kind

    def __str__(self) -> str:
        shorthand = self.shorthand
        if isinstance(shorthand, str):
            return shorthand
        ((field, value),) = shorthand.items()
        return f"{{{field}: {'[' + ', '.join(value) + ']' if isinstance(value, list) else value}}}"

    @property
    def depends_on_stage(self) -> bool:
        """Whether the recomputed blocks depend on the begin of stages."""
        return self.every > 1 or self.layers is not None

    @property
    def depends_on_position(self) -> bool:
        """Whether identical blocks of a stage may keep different activations."""
        return self.depends_on_stage or self.group > 1

    def concerned(self, stage: Sequence[Layer]) -> list[bool]:
        """Whether each layer of one stage is recomputed, in whole or in part."""
        result, blocks = [], 0
        for layer in stage:
            blocks += not layer.pinned_to_end
            selected = blocks % self.every == 0 and (self.layers is None or blocks <= self.layers)
            result.append(self.kind != "none" and layer.can_be_recomputed and selected)
        return result

    def suits(self, layers: Sequence[Layer]) -> bool:
        """Whether a model with these layers has the modules to recompute."""
        try:
            self.check(layers, "model")
        except FieldError:
            return False
        return True

    def check(self, layers: Sequence[Layer], kind: str) -> None:
        """Raises FieldError if a model of this kind, with these layers, does not have the modules to recompute."""
        blocks = [layer for layer in layers if not layer.pinned_to_end]
        products = (operator for layer in blocks for operator in layer.operators if isinstance(operator, Matmul))
        if self.products is not None and not any(products):
            raise FieldError(_FIELD, f"this {kind} has no products with weights; give full")
        for name in self.module_names:
            if not any(module.name == name for layer in blocks for module in layer.modules):
                known = sorted({module.name for layer in blocks for module in layer.modules})
                instead = f"give some of {', '.join(known)}, or full" if known else "give full, or {group: n}"
                module = "attention" if name == "core_attn" else name
                raise FieldError(_FIELD, f"this {kind} has no {module} to recompute; {instead}")

    @property
    def module_names(self) -> Sequence[str]:
        """Modules of each block that `selective` recomputes."""
        if self.kind != "selective" or self.products is not None:
            return ()
        return self.modules or ("core_attn",)


class RecomputedWork(NamedTuple):
    """Operators and collectives that selective recomputation of a block repeats, and the activations that it keeps."""

    operators: tuple[Operator, ...]
    exchanges: tuple[Exchange, ...]
    kept: tuple[SavedActivation, ...]


def again(layer: Layer, recompute: Recompute) -> RecomputedWork:
    """The work that `selective` repeats in a block, and the activations that it keeps."""
    if recompute.products is not None:
        return _every_second(layer)
    modules = [module for module in layer.modules if module.name in recompute.module_names]
    operators = {index for module in modules for index in module.operators}
    exchanges = {index for module in modules for index in module.exchanges}
    dropped = {index for module in modules for index in module.kept}
    return RecomputedWork(
        tuple(layer.operators[index] for index in sorted(operators)),
        tuple(layer.exchanges[index] for index in sorted(exchanges) if not layer.exchanges[index].backward),
        tuple(kept for index, kept in enumerate(layer.kept) if index not in dropped),
    )


def kept_activations(
    layer: Layer, recompute: Recompute, first: bool = True, entry_elements: int = 0
) -> tuple[SavedActivation, ...]:
    """The activations that a layer keeps from its forward to its backward pass.

    first: whether it is the first layer of a recomputed group, of which only the input is kept. entry_elements: elements per
    sample of that input, used if the layer's own saved activations do not include it.
    """
    if recompute.kind == "none" or layer.pinned_to_end:
        return layer.kept
    if recompute.kind == "selective":
        return again(layer, recompute).kept
    if not first:
        return ()
    inputs = tuple(activation for activation in layer.kept if activation.group == "input")
    return inputs or (SavedActivation(READ, entry_elements, group="input"),)


def _every_second(layer: Layer) -> RecomputedWork:
    """torchtitan's selection by operator (models/llama3/parallelize.py: _save_list, every second mm).

    The block's input is kept, and the outputs of every second product from the first on, of flash attention and of
    reduce-scatters; everything else is recomputed.
    """
    products = [product for operator in layer.operators for product in _products(operator, layer.kept)]
    kept = [activation for activation in layer.kept if activation.group == "input" or activation.name in _ATTENTION_KEPT]
    operators = (
        o for o in layer.operators if not isinstance(o, Matmul | Attention | Scan) or (isinstance(o, Attention) and not o.flash)
    )
    exchanges = (e for e in layer.exchanges if not e.backward and e.op != "reduce_scatter" and e.axis != "context")
    scatters = sum(not e.backward and e.op == "reduce_scatter" and e.axis == "tensor" for e in layer.exchanges)
    return RecomputedWork(
        (*(product for product, _ in products[1::2]), *operators),
        tuple(exchanges),
        (*kept, *(output for _, output in products[::2]), *scatters * [SavedActivation("scattered", layer.output_elements)]),
    )


def _products(operator: Operator, kept: Sequence[SavedActivation]) -> Iterator[tuple[Matmul, SavedActivation]]:
    """An operator's products with weights, and their outputs. Queries, keys, values and both halves of a gated MLP are separate
    products."""
    if not isinstance(operator, Matmul):
        return
    # the first of a name: cross-attention keeps queries, keys and values of its own
    by_name = {activation.name: activation for activation in reversed(kept)}
    if operator.name == "qkv" and {"queries", "keys", "values"} <= by_name.keys():
        for name in ("queries", "keys", "values"):
            columns = by_name[name].elements // (operator.rows * operator.count)
            yield replace(operator, columns=columns), by_name[name]
        return
    gated = operator.name == "up" and "up" in by_name and by_name["up"].elements == 2 * by_name["activation"].elements
    parts = 2 if gated else 1
    part = replace(operator, columns=operator.columns // parts)
    for _ in range(parts):
        yield part, SavedActivation(operator.name, part.rows * part.columns * part.count)


_FIELD: Final = ("training", "recompute")
_KIND_OF: Final[dict[str, Literal["selective", "full"]]] = {
    "group": "full", "every": "full", "layers": "full", "modules": "selective", "products": "selective",
}  # fmt: skip
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["none", "selective", "full"]},
        **{field: {"type": "integer", "minimum": 1} for field in ("group", "every", "layers")},
        "modules": {"type": "array", "items": {"enum": list(ModuleName.__args__)}},  # type: ignore[attr-defined]
        "products": {"enum": ["every_second"]},
    },
    "additionalProperties": False,
}
_ANY: Final = {"anyOf": [{"enum": ["none", "selective", "full"]}, _SCHEMA]}
AnyRecompute = Annotated[Recompute, WithJsonSchema(_ANY)]
NO_RECOMPUTE: Final = Recompute()
# The selective recomputation of Megatron-LM (arXiv 2205.05198, section 5).
ATTENTION_CORE: Final = Recompute(kind="selective")
