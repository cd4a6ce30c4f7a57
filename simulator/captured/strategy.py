"""The strategy of a captured training script: its own streams, collectives and messages, as they were recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from scaleproof.simulator.cluster.device.device import Precision
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec, Width
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.recompute import NO_RECOMPUTE
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.strategy import Strategy

if TYPE_CHECKING:
    from scaleproof.simulator.captured.script import CapturedScript


class CapturedStrategy(Strategy):
    """Ranks run a captured script.

    What the script decides, such as samples and degrees of parallelism inside a replica, is that of the capture; the number of
    replicas may differ where only sizes of groups depend on it.
    """

    kind: Literal["captured"] = "captured"
    record: str = Field("", description="path of the capture file")
    kernels: str = Field("", description="path of a file that describes kernels from outside PyTorch, see known_kernels.yaml")
    samples_: Width | None = Field(
        None, alias="samples", description="samples of a step of all captured ranks, in place of those read from its inputs"
    )
    workers: Count = Field(1, description="replicas of the model, which train on different samples")

    @property
    def script(self) -> CapturedScript:
        """The captured script. Raises InputError if its file is not given or cannot be read."""
        # scenarios of other strategies are loaded without the modules that read captures
        from scaleproof.simulator.captured.reading import read

        if not self.record:
            raise FieldError(("strategy", "record"), "missing; give the path of a file that 'scaleproof capture' wrote")
        return read(Path(self.record), Path(self.kernels) if self.kernels else None)

    @property
    def fixed_samples(self) -> int:
        """Samples of a worker, which the script decides. Raises FieldError for a number that captured workers do not divide."""
        if self.samples_ is None:
            return self.script.samples
        samples, rest = divmod(self.samples_, self.script.replicas.count)
        if rest:
            message = f"{self.samples_:,} samples are no multiple of the {self.script.replicas.count:,} captured workers"
            raise FieldError(("strategy", "samples"), f"{message}; give those of a step of all of them")
        return samples

    @cached_property
    def plan(self) -> Plan:
        """The number of replicas; the rest of the division is in the record."""
        return Plan(workers=self.workers)

    @property
    def training_ranks(self) -> int:
        """Number of ranks with this number of replicas."""
        return self.workers * (self.script.world_size // self.script.replicas.count)

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Checks that only the number of replicas differs from the capture; raises FieldError."""
        script = self.script
        if samples_per_worker != self.fixed_samples:
            given = f"the script takes {self.fixed_samples} samples per worker and step, not {samples_per_worker}"
            remedy = "capture it again with another batch size, or correct a number that was read wrongly by strategy.samples"
            raise FieldError(("batch",), f"{given}; {remedy}")
        script.check_replicas(self.workers)

    def check_training(self, training: Spec, known: Collection[Precision]) -> None:
        """Checks that the training is that of the script on a device with rates for known precisions; raises FieldError."""
        script = self.script
        captured = {
            "precision": script.precision_on(known), "optimizer": script.optimizer, "recompute": NO_RECOMPUTE, "zero": 0,
            "offload": (), "state_bits": None, "ema": None, "clip_gradients": None,
        }  # fmt: skip
        for field, value in captured.items():
            given = getattr(training, field)
            if given != value:
                message = f"the script was captured with {value}, not {given}; change the script and capture it again"
                raise FieldError(("training", field), message)
