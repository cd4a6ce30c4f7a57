"""Frameworks: what training software does beyond a model's mathematics, as data that ships in scenarios/frameworks/."""

from scaleproof.simulator.frameworks.execution import Execution, TrainingWork, execution_of
from scaleproof.simulator.frameworks.files import attention_versions, shipped
from scaleproof.simulator.frameworks.framework import ABLATIONS, IDEAL, Framework, Loss, MemoryBehaviour

__all__ = [
    "ABLATIONS", "IDEAL", "Execution", "Framework", "Loss", "MemoryBehaviour", "TrainingWork", "attention_versions",
    "execution_of", "shipped",
]  # fmt: skip
