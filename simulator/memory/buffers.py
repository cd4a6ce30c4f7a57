"""Buffers: in which lies what is sent, received, gathered and summed."""

from __future__ import annotations

from simulator.memory.own import Own
from simulator.memory.setting import Setting
from simulator.memory.states import MASTER_BYTES, States
from simulator.strategy import LocalSgd
from simulator.strategy.compression import PowerSgd, TopK
from simulator.strategy.replicated import Replicated


class Buffers:
    """Of a rank with its part of the model, and what it holds for parameters."""

    def __init__(self, setting: Setting, own: Own, held: States) -> None:
        self.setting, self.held, self.layers = setting, held, own.layers
        self.parameters = sum(layer.parameters for layer in self.layers)
        sample_bytes, last = setting.samples * setting.size, setting.job.layers[-1].name
        self.entries_bytes = [sample_bytes * entry for entry in own.entries]
        outputs = (0 if chunk[-1].name == last else chunk[-1].output_elements for chunk in own.chunks)
        self.outputs_bytes = [sample_bytes * output for output in outputs]
        self.always_bytes = self._summed_bytes() + self._compressed_bytes() + self._gathered_bytes() + self._apart_bytes()

    def pipeline_bytes(self, rank: int) -> float:
        """What comes from and goes to other stages.

        torch.distributed.pipelining has buffers for what every microbatch receives, of which those in flight are activations,
        and for the gradients of all outputs; Megatron-LM for the next of each.
        """
        software, microbatches, total = self.setting.software, self.setting.plan.microbatches, 0.0
        ends = zip(self.entries_bytes, self.outputs_bytes, self.setting.flights.most[rank], strict=True)
        for entry, output, flight in ends:
            total += (microbatches - flight) * entry + microbatches * output if software.receives_all else entry + output
            total += flight * output if software.keeps_outputs else 0.0
        return total

    def _summed_bytes(self) -> float:
        """Buckets of gradients. Of those that ZeRO's second stage scatters one fills while the one before it is on its way.
        Strategies that exchange something else have a copy of it, flat (torch.distributed.algorithms.model_averaging)."""
        plan, zero, software = self.setting.plan, self.setting.training.zero, self.setting.software
        if plan.workers * plan.context == 1 or self.setting.strategy.servers:
            return 0.0
        if not isinstance(self.setting.strategy, Replicated):
            return self.held.gradients
        buckets = self.held.gradients if software.copies_buckets and zero < 2 else 0.0
        if zero == 2:
            buckets = min(2 * plan.bucket_bytes, self.parameters * self.setting.gradient_size)
        return buckets + (min(software.reduce_elements, self.parameters) * self.setting.size if zero else 0.0)

    def _compressed_bytes(self) -> float:
        """What compression leaves over for the next step, an element for each parameter, and what is sent and comes."""
        plan, size = self.setting.plan, self.setting.gradient_size
        if plan.compression is None or plan.workers == 1:
            return 0.0
        wires = plan.compression.wire([tensor for layer in self.layers for tensor in layer.tensors], size)
        left = self.parameters * size if isinstance(plan.compression, PowerSgd | TopK) else 0
        return left + sum(wire.collective_bytes(plan.workers) for wire in wires)

    def _gathered_bytes(self) -> float:
        """Parameters that ZeRO's third stage gathers: of what is glued, together and for the whole pass; of the layer that
        computes and those that are gathered ahead; or of all, where they are not dropped after the forward pass."""
        if not self.setting.gathers:
            return 0.0
        plan = self.setting.plan
        ends = sum(layer.parameters for layer in self.layers if layer.glued)
        blocks = [layer.parameters for layer in self.layers if not layer.glued]
        ahead = min(sum(blocks), (1 + plan.prefetch) * max(blocks, default=0)) if plan.reshard else sum(blocks)
        return float(self.setting.size * (ends + ahead))

    def _apart_bytes(self) -> float:
        """What workers that go apart keep to find together again: DiLoCo's parameters of the period's begin and their momentum,
        in 32 bits."""
        strategy = self.setting.strategy
        outer = isinstance(strategy, LocalSgd) and strategy.outer == "nesterov"
        return 2.0 * max(MASTER_BYTES, self.setting.size) * self.parameters if outer else 0.0
