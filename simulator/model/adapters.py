"""Adapters of fine-tuning, and the names by which training software knows the products that have them.

Low-rank products are trained next to frozen ones: LoRA (arXiv 2106.09685) and DoRA (arXiv 2402.09353), as PEFT has them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field, PositiveFloat, field_validator

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec, Width
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Matmul

ALL_LINEAR: Final = "all-linear"
HEAD: Final = "head"
# By product, the names of it in training software, the most usual first: those of transformers' Llama, GPT-2, GPT-NeoX, BERT,
# T5 and DeepSeek, of torchtitan, torchtune and Megatron-Core.
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "q": ("q_proj", "q", "query", "wq", "q_lin"),
    "k": ("k_proj", "k", "key", "wk", "k_lin"),
    "v": ("v_proj", "v", "value", "wv", "v_lin"),
    "qkv": ("query_key_value", "qkv", "c_attn", "qkv_proj", "Wqkv", "wqkv", "linear_qkv"),
    "o": ("o_proj", "o", "out_proj", "output_proj", "wo", "c_proj", "linear_proj", "out_lin", "proj", "projection"),
    "gate": ("gate_proj", "gate", "w1", "wi_0"),
    "up": ("up_proj", "up", "w3", "wi_1", "wi", "fc1", "c_fc", "dense_h_to_4h", "lin1", "linear_fc1"),
    "gate_up": ("gate_up_proj", "gate_up", "linear_fc1"),
    "down": ("down_proj", "down", "w2", "fc2", "c_proj", "dense_4h_to_h", "lin2", "linear_fc2"),
    "query down": ("q_a_proj",),
    "query up": ("q_b_proj",),
    "key down": ("kv_a_proj_with_mqa",),
    "key up": ("kv_b_proj",),
    HEAD: ("lm_head", "head", "output", "embed_out"),
}  # fmt: skip
# Names of operators that are one product in software, too.
_SAME: Final = {
    "query": "q", "projection": "o", "up": "up", "down": "down", "expert up": "up", "expert down": "down", "head": HEAD,
}  # fmt: skip
_MLP: Final = frozenset({"gate", "up", "gate_up", "down"})
_GATED: Final = frozenset({"swiglu", "geglu"})


class Adapters(Spec):
    """Low-rank products that are trained next to frozen products with weights (LoRA, DoRA)."""

    kind: Literal["lora", "dora"] = Field("lora", description="DoRA also trains the norm of each column of the whole weights")
    rank: Width = Field(description="inner width of the adapters")
    alpha: PositiveFloat | None = Field(
        None, description="outputs of adapters are multiplied by alpha / rank; 1 if absent; without effect on time"
    )
    targets: tuple[str, ...] = Field(
        (ALL_LINEAR,),
        min_length=1,
        description="products that have adapters, by their names in training software, such as q_proj; all-linear: all "
        "without the output head, of which queries, keys and values are one in a gpt",
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="share of adapters' inputs that is dropped")
    modules_to_save: tuple[str, ...] = Field(
        (),
        description="layers of which a copy is trained in full, such as embedding and head, in the precision of adapters; the "
        "frozen one stays in memory",
    )
    precision: Literal["fp32", "bf16", "fp16"] | None = Field(
        None, description="of adapters; fp32 where the framework trains by autocast, else the training precision"
    )

    @field_validator("targets", "modules_to_save", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        """Accepts one name without a list."""
        return (value,) if isinstance(value, str) else value


class Part(NamedTuple):
    """Columns of a product that are one product in training software, by its name there."""

    name: str
    columns: int


class ProductParts(NamedTuple):
    """A product in training software: as one product, and as several."""

    whole: Part
    split: tuple[Part, ...]

    def chosen(self, targets: Collection[str], is_fused: bool) -> tuple[Part, ...]:
        """The parts that have adapters. is_fused: whether queries, keys and values are one product."""
        if ALL_LINEAR in targets and self.whole.name != HEAD:
            return (self.whole,) if is_fused and self.whole.name == "qkv" else self.split
        wanted = set[str]().union(*map(_names, targets))
        if len(self.split) > 1 and self.whole.name in wanted:
            return (self.whole,)
        return tuple(part for part in self.split if part.name in wanted)


def parts_of(layer: Layer, operator: Matmul) -> ProductParts:
    """A layer's product as training software has it. Queries, keys and values are one product here, and so are both halves of
    a gated MLP."""
    name, columns = operator.name, operator.columns
    if name == "qkv":
        attention = next(one for one in layer.operators if isinstance(one, Attention))
        rest = (columns - (queries := min(columns, _queries(attention, operator)))) // 2
        return ProductParts(Part("qkv", columns), (Part("q", queries), Part("k", rest), Part("v", rest)))
    if name == "key value":
        return ProductParts(Part(name, columns), (Part("k", columns // 2), Part("v", columns - columns // 2)))
    if name in ("up", "expert up") and any(one.name in _GATED for one in layer.operators):
        return ProductParts(Part("gate_up", columns), (Part("gate", columns // 2), Part("up", columns // 2)))
    one = Part(_SAME.get(name, name), columns)
    return ProductParts(one, (one,))


def _queries(attention: Attention, operator: Matmul) -> int:
    """Columns of the queries in their product with keys and values."""
    return attention.heads * attention.queries * attention.width // operator.rows


def _names(word: str) -> set[str]:
    """The products that a word may name: those of training software, else an operator's own name."""
    module, _, own = word.rpartition(".")
    found = {name for name, words in _WORDS.items() if own in words} or {own.replace("_", " "), own}
    within = found & _MLP if "mlp" in module else found - _MLP if "att" in module else found
    return within or found


def check(adapters: Adapters, layers: Sequence[Layer]) -> None:
    """Raises FieldError for targets that the model does not have, and for a rank above the width of one other than a router."""
    products = [
        (parts_of(layer, operator), operator.inner)
        for layer in {one.signature: one for one in layers}.values()
        for operator in layer.operators
        if isinstance(operator, Matmul)
    ]
    known = [part.name for both, _ in products for part in (*both.split, both.whole)]
    for target in adapters.targets:
        if target != ALL_LINEAR and not _names(target) & set(known):
            words = ", ".join(dict.fromkeys(map(_usual, known)))
            message = f"the model has no {target}; give some of {words}" if known else "the model has no matrix products"
            raise FieldError(("training", "adapters", "targets"), message)
    for both, inner in products:
        for part in both.chosen(adapters.targets, is_fused=False):
            if part.name != "router" and adapters.rank > (width := min(part.columns, inner)):
                message = f"{adapters.rank} is above the width of {_usual(part.name)}; give at most {width}"
                raise FieldError(("training", "adapters", "rank"), message)


def _usual(name: str) -> str:
    """The most usual name of a product in training software."""
    return _WORDS.get(name, (name.replace(" ", "_"),))[0]
