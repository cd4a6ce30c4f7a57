"""Evidence for a prediction: published runs that are similar to a scenario, and how well they were predicted."""

from __future__ import annotations

import csv
import functools
import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import TypeAdapter

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import naming_extras
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import counted, format_percent
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

# Written by docs/scripts/evidence.py from the published transformer runs.
FILE: Final = catalog.ROOT / "published" / "evidence.csv"
# Runs up to this distance are similar; at most this number of the nearest count.
_FAR: Final = 6.0
_MOST: Final = 50
# Distance of a factor of two in parameters and in GPUs, and of other differences. They order runs and decide which are similar,
# never what is predicted: a judgement. The GPU counts most, then the framework and the model.
_PER_DOUBLING: Final = {"parameters": 1.0, "gpus": 0.5}
_OTHER_MODEL: Final = 0.5
_OTHER_DEVICE: Final = 2.0
_OTHER_GENERATION: Final = 4.0
_OTHER_FRAMEWORK: Final = 1.0
# another version of the same software, or of the same GPU with other memory or power
_OTHER_VERSION: Final = 0.25
_OTHER_LAYOUT: Final = 0.75
# relative difference of parameters up to which two models are the same
_SAME_MODEL: Final = 0.02
_TRANSFORMERS: Final = ("gpt", "llama", "bert", "t5")


class PublishedRun(Record):
    """A published training run, and the step time that is predicted for it.

    id: of the row; `scaleproof show published:ID` prints its scenario. parameters: of the model. experts: whether it is a
    mixture of experts. generation: of the GPU. low_s, high_s: the 90 % prediction interval.
    """

    derived: ClassVar = ("error",)

    id: str
    model: str
    parameters: int
    experts: bool
    device: str
    generation: str
    gpus: int
    tensor: int
    stages: int
    zero: int
    precision: str
    framework: str
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float

    @property
    def layout(self) -> str:
        """Degrees of parallelism above 1, ZeRO stage and precision: 'TP4 PP2 ZeRO-1 bf16'."""
        degrees = [f"{name}{degree}" for name, degree in (("TP", self.tensor), ("PP", self.stages)) if degree > 1]
        zero = [f"ZeRO-{self.zero}"] if self.zero else []
        return " ".join([*degrees, *zero, self.precision])

    @property
    def error(self) -> float:
        """Relative error of the prediction; above zero, it was too slow."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_covered(self) -> bool:
        """Whether the measured time is in the prediction interval."""
        return self.low_s <= self.measured_s <= self.high_s


class Evidence(Record):
    """Published runs that are similar to a scenario, the nearest first."""

    derived: ClassVar = ("similar", "median_error", "coverage")

    runs: tuple[PublishedRun, ...]

    def __repr__(self) -> str:
        runs = counted(self.similar, "similar published run")
        if self.median_error is None or self.coverage is None:
            return runs
        coverage = format_percent(self.coverage, 0)
        return f"{runs}; median error {format_percent(self.median_error)}, {coverage} in the 90 % interval"

    @property
    def similar(self) -> int:
        """Number of the runs."""
        return len(self.runs)

    @property
    def median_error(self) -> float | None:
        """Median of the absolute relative errors of their predictions; None without runs."""
        return statistics.median(abs(run.error) for run in self.runs) if self.runs else None

    @property
    def coverage(self) -> float | None:
        """Share of the runs whose measured time is in the 90 % prediction interval; None without runs."""
        return statistics.mean(run.is_covered for run in self.runs) if self.runs else None

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per published run, the nearest first. Needs pandas."""
        import pandas as pd

        return pd.DataFrame([run.to_dict() for run in self.runs])


def evidence(scenario: Scenario) -> Evidence:
    """The published runs that are similar to a scenario in GPU, framework, model, number of GPUs and layout, the nearest first;
    may be empty."""
    about = description(scenario)
    if about is None:
        return Evidence(runs=())
    by_distance = sorted((_distance(about, run), run.id, run) for run in published_runs() if run.experts == about["experts"])
    return Evidence(runs=tuple(run for distance, _, run in by_distance[:_MOST] if distance <= _FAR))


def description(scenario: Scenario) -> dict[str, Any] | None:
    """The facts by which runs are compared, as columns of the file; None for models that are no transformers."""
    strategy, device, model = scenario.strategy, scenario.cluster.device, scenario.model
    if model.kind not in _TRANSFORMERS or not isinstance(strategy, ReplicaStrategy):
        return None
    return {
        "model": model.name,
        "parameters": sum(layer.parameters for layer in model.build_layers()),
        "experts": getattr(model, "experts", None) is not None,
        "device": device.name,
        "generation": device.kernels.generation if device.kernels is not None else "",
        "gpus": strategy.training_ranks,
        "tensor": getattr(strategy, "tensor", 1),
        "stages": strategy.stages,
        "zero": scenario.training.zero,
        "precision": scenario.training.precision,
        "framework": scenario.framework.name,
    }


@functools.cache
def published_runs() -> tuple[PublishedRun, ...]:
    """All published transformer runs that were scored."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return TypeAdapter(tuple[PublishedRun, ...]).validate_python(list(csv.DictReader(file)))


def _distance(about: Mapping[str, Any], run: PublishedRun) -> float:
    """How different a published run is from a scenario; 0 if it is the same in all that is compared."""
    distance: float = sum(weight * abs(math.log2(about[name] / getattr(run, name))) for name, weight in _PER_DOUBLING.items())
    if abs(about["parameters"] / run.parameters - 1) > _SAME_MODEL:
        distance += _OTHER_MODEL
    other_device = _OTHER_DEVICE if about["generation"] == run.generation else _OTHER_GENERATION
    distance += _of_names(about["device"], run.device, other_device)
    distance += _of_names(about["framework"], run.framework, _OTHER_FRAMEWORK)
    different = [
        (about["tensor"] > 1) != (run.tensor > 1),
        (about["stages"] > 1) != (run.stages > 1),
        (about["zero"] == 3) != (run.zero == 3),
        ("8" in about["precision"]) != ("8" in run.precision),
    ]
    distance += _OTHER_LAYOUT * sum(different)
    return distance


def _of_names(one: str, other: str, different: float) -> float:
    """Distance of two names, of which the part before the first hyphen is that of all versions: 'H100', 'torchtitan'."""
    if one == other:
        return 0.0
    return _OTHER_VERSION if one.partition("-")[0] == other.partition("-")[0] else different
