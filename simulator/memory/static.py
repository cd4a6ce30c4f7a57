"""Memory of a rank that is allocated throughout a step, and of its optimizer step. Arrays represent many ranks."""

from __future__ import annotations

from scaleproof.simulator.memory.buffers import always_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.result import TEMPORARY
from scaleproof.simulator.memory.stage_layers import StageElements
from scaleproof.simulator.memory.states import MASTER_BYTES, Amount, states_of
from scaleproof.simulator.memory.step import UpdateBytes


class StaticMemory:
    """Memory of a rank with a part of the model that is allocated throughout a step. states: its states."""

    def __init__(self, setting: MemoryInputs, part: StageElements) -> None:
        self.setting, self.part = setting, part
        self.states = states_of(part.sizes, setting.training, *setting.sharing, setting.gradient_size, setting.whole_gradients)

    def holders_bytes(self) -> dict[str, float]:
        """Bytes by holder that are constant throughout a step."""
        setting, software, states = self.setting, self.setting.software, self.states
        updates = self._updates
        mastered = states.master_parameters / MASTER_BYTES if updates else 0.0
        return {
            "parameters": 0.0 if "parameters" in setting.training.offload else states.parameters,
            "gradients": software.flat_bytes * mastered if self._flattens else 0.0,
            "master_parameters": software.master_bytes * mastered,
            "optimizer_states": states.optimizer_states if updates else 0.0,
            "activations": setting.samples_per_worker * self.part.batch_bytes,
            "working": self._separate_gradients_bytes() + self._cast_bytes,
            "communication": always_bytes(setting, self.part, states),
        }

    def reserved_bytes(self) -> float:
        """Total bytes, with fragmentation."""
        holders = self.holders_bytes()
        return sum(holders.values()) + self.setting.fragmentation * sum(holders.get(name, 0.0) for name in TEMPORARY)

    @property
    def host_bytes(self) -> float:
        """Bytes of states that are offloaded to host memory."""
        offload, states = self.setting.training.offload, self.states
        host = states.master_parameters + states.optimizer_states if "optimizer" in offload else 0.0
        return host + (states.parameters if "parameters" in offload else 0.0)

    def update_bytes(self, received: Amount = 0.0) -> UpdateBytes:
        """Bytes of tensors of the optimizer's step: received gradients, 32-bit copies of gradients, unless they exist already,
        and temporaries.

        torch's Adam, unless it is fused, allocates two temporaries of the size of a tensor, for one tensor after another.
        """
        setting, main = self.setting, self._copies and self.setting.software.main_gradients and not self._flattens
        unfused = setting.training.optimizer == "adam" and not setting.is_gpu and not setting.servers
        working = 2.0 * setting.parameter_size * self.part.largest if unfused else 0.0
        return UpdateBytes((received,), (self.states.master_parameters if main else 0.0,), (working,))

    def _separate_gradients_bytes(self) -> float:
        """Bytes of stand-ins for gradients that are in buffers already, and of one gradient in the precision of the buffers."""
        setting = self.setting
        stand_ins = setting.parameter_size * self.part.products if setting.software.stand_ins else 0.0
        return stand_ins + (setting.gradient_size * self.part.largest if setting.has_both else 0.0)

    @property
    def _cast_bytes(self) -> Amount:
        """Bytes of the copies of parameters in the precision of activations, which autocast keeps until the backward pass."""
        setting = self.setting
        return setting.size * self.part.sizes.parameters if setting.size < setting.parameter_size else 0.0

    @property
    def _updates(self) -> bool:
        """Whether the rank's device updates parameters."""
        return "optimizer" not in self.setting.training.offload and self.setting.servers == 0

    @property
    def _copies(self) -> bool:
        """Whether gradients have fewer bits than the optimizer uses, so that it copies them."""
        size = self.setting.parameter_size
        is_wider = self.setting.training.master and size < MASTER_BYTES
        return self._updates and is_wider and self.setting.gradient_size == size

    @property
    def _flattens(self) -> bool:
        """Whether copies of gradients are flat tensors that stay allocated."""
        return self._copies and self.setting.training.zero > 0 and self.setting.software.flat_bytes > 0
