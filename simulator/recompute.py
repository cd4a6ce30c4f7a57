"""Recomputation: activations that are dropped in the forward pass and made again in the backward pass."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema, model_validator

from simulator.spec import Count, Spec


class Recompute(Spec):
    """What is made again. YAML writes `none`, `selective`, `full` or `{every: n}`.

    selective: attention's scores alone (arXiv 2205.05198, section 5). full: a layer from its input; with every n the input of
    each n-th layer alone is kept, and n layers are made again together. What is glued (embeddings, stems, heads) is kept.
    """

    kind: Literal["none", "selective", "full"] = "none"
    every: Count = Field(1, description="layers that are made again together, with full")

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"every"}:
            return {"kind": "full", **value}
        return {"kind": value} if isinstance(value, str) else value

    @property
    def shorthand(self) -> str | dict[str, int]:
        """As scenarios have it."""
        return self.kind if self.every == 1 else {"every": self.every}

    def __str__(self) -> str:
        return self.kind if self.every == 1 else f"{{every: {self.every}}}"


_EVERY: Final = {"type": "object", "properties": {"every": {"type": "integer", "minimum": 1}}}
_ANY: Final = {"anyOf": [{"enum": ["none", "selective", "full"]}, _EVERY]}
AnyRecompute = Annotated[Recompute, WithJsonSchema(_ANY)]
NO_RECOMPUTE: Final = Recompute()
