"""Always: what a rank holds throughout a step, and at the optimizer's. Of many ranks at once where numbers are arrays."""

from __future__ import annotations

from scaleproof.simulator.memory.buffers import always_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.result import COMES_AND_GOES
from scaleproof.simulator.memory.stage_layers import StageElements
from scaleproof.simulator.memory.states import MASTER_BYTES, states_of


class Always:
    """Of a rank with a part of the model. held: for parameters, and of their gradients."""

    def __init__(self, setting: MemoryInputs, part: StageElements) -> None:
        self.setting, self.part = setting, part
        self.held = states_of(part.sizes, setting.training, *setting.sharing, setting.gradient_size, setting.whole_gradients)

    def holders_bytes(self) -> dict[str, float]:
        """What stays the same throughout a step."""
        setting, software, held = self.setting, self.setting.software, self.held
        updates = self._updates
        mastered = held.master_parameters / MASTER_BYTES if updates else 0.0
        return {
            "parameters": 0.0 if "parameters" in setting.training.offload else held.parameters,
            "gradients": software.flat_bytes * mastered if self._flattens else 0.0,
            "master_parameters": software.master_bytes * mastered,
            "optimizer_states": held.optimizer_states if updates else 0.0,
            "activations": setting.samples_per_worker * self.part.batch_bytes,
            "working": self._gradients_apart_bytes(),
            "communication": always_bytes(setting, self.part, held),
        }

    def reserved_bytes(self) -> float:
        """All of it, with what the allocator holds beyond."""
        holders = self.holders_bytes()
        return sum(holders.values()) + self.setting.fragmentation * sum(holders.get(one, 0.0) for one in COMES_AND_GOES)

    @property
    def host_bytes(self) -> float:
        """What the host holds for it."""
        offload, held = self.setting.training.offload, self.held
        host = held.master_parameters + held.optimizer_states if "optimizer" in offload else 0.0
        return host + (held.parameters if "parameters" in offload else 0.0)

    def optimizer_step_bytes(self) -> tuple[float, float]:
        """What comes on top: work, and gradients copied to 32 bits, unless that has been done. torch's Adam makes two of the
        size of one tensor after another, unless it is fused."""
        setting, main = self.setting, self._copies and self.setting.software.main_gradients and not self._flattens
        unfused = setting.training.optimizer == "adam" and not setting.is_gpu and not setting.servers
        return 2.0 * setting.size * self.part.largest if unfused else 0.0, self.held.master_parameters if main else 0.0

    def _gradients_apart_bytes(self) -> float:
        """What stands for gradients that are in the buffers already; one gradient after another in the buffers' precision."""
        setting = self.setting
        stand_ins = setting.size * self.part.products if setting.software.stand_ins else 0.0
        return stand_ins + (setting.gradient_size * self.part.largest if setting.has_both else 0.0)

    @property
    def _updates(self) -> bool:
        """Whether the rank's device updates parameters."""
        return "optimizer" not in self.setting.training.offload and self.setting.servers == 0

    @property
    def _copies(self) -> bool:
        """Whether gradients that the optimizer takes have fewer bits than it has."""
        size = self.setting.size
        return self._updates and size < MASTER_BYTES and self.setting.gradient_size == size

    @property
    def _flattens(self) -> bool:
        """Whether copies of gradients are flat tensors that stay."""
        return self._copies and self.setting.training.zero > 0 and self.setting.software.flat_bytes > 0
