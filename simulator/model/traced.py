"""The model that a user's function builds: any torch module.

The user writes a function that returns the module and example inputs, whose first dimension is the batch:

    def build():
        return MyNetwork(), torch.randn(8, 3, 224, 224)

or a mapping with module, inputs, targets, loss and optimizer (see `tracing.user_function.UserModel`), and gives the model as
`python:my_file:build`, or with arguments of the function as `python:my_file:build(width=32)`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final, Literal

from scaleproof.simulator.model.contrastive import TwoTowers
from scaleproof.simulator.model.layers import WHOLE, Layer, Shard, refuse_to_shard

# References to modules of packages, such as timm:resnet50@224.
PACKAGES: Final = ("timm:", "torchvision:")


class Traced(TwoTowers):
    """A torch module that a user's function builds.

    source: `python:module:function`; the working folder is searched first. strict: whether an operator of unknown cost is an
    error; otherwise its cost is that of the bytes that it reads and writes, with a warning.
    """

    kind: Literal["traced"] = "traced"
    source: str
    strict: bool = False

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The layers, traced once per process.

        Raises FieldError for any problem with the function, and MissingDependencyError if torch is not installed.
        """
        from scaleproof.simulator.model.tracing.torch_module import trace_of
        from scaleproof.simulator.model.tracing.user_function import refuse

        refuse_to_shard(self.kind, shard)
        layers, unknown, _, _ = trace_of(self.source, Path.cwd())
        if unknown:
            problem = f"no cost is known for {', '.join(unknown)}"
            if self.strict:
                refuse(self.source, f"{problem}; leave strict out to count the bytes that they read and write")
            warnings.warn(f"{self.source}: {problem}; counted by the bytes that they read and write", stacklevel=1)
        return list(layers)


def trace(reference: str, strict: bool = False) -> Traced:
    """The traced model `python:module:function`; errors as in `Traced.build_layers`."""
    traced = Traced(name=reference.rpartition(":")[2], source=reference, strict=strict)
    traced.build_layers()
    return traced
