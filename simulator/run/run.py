"""Run: the result of a prediction or a measurement.

A Run always has a summary; spans, which are intervals of each rank's work, waiting and communication, are optional.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import AllowInfNan, ConfigDict, InstanceOf, PositiveFloat, PositiveInt

from scaleproof.simulator.common.errors import naming_extras
from scaleproof.simulator.common.spans import Spans
from scaleproof.simulator.common.units import counted, format_bytes, format_number, format_percent, format_range, format_time_s
from scaleproof.simulator.run.records import (
    CaptureFacts,
    CommunicationPart,
    LoadingRates,
    Scaling,
    ServerStatistics,
    StageMemory,
    TargetEstimate,
    Verification,
)
from scaleproof.simulator.run.step_times import StepDistribution, measured_quantiles_s

if TYPE_CHECKING:
    import pandas as pd

Origin = Literal["predicted", "measured"]


# Properties that a summary has in addition to the fields.
DERIVED: Final = (
    "samples_per_s", "samples_per_s_per_rank", "tokens_per_s", "tokens_per_s_per_rank", "mfu", "hfu", "bubble_fraction",
    "time_to_target_s", "time_to_target_interval_s", "efficiency", "speed_up", "baseline", "step_quantiles_s",
)  # fmt: skip
# Entry of the provenance of runs and of measured clusters: what disturbed the measurement.
DISTURBED: Final = "disturbed"
# Number of causes in a run's facts, and the minimum share of the step of each.
_CAUSES: Final = 3
_MIN_SHARE: Final = 5e-4
BREAKDOWN: Final = (
    "compute", "slowest_rank", "exposed_communication", "bubble", "waiting_for_server", "waiting_for_ranks",
    "waiting_for_input", "other",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training run, predicted or measured. Fields are None or empty where they are unknown.

    scenario: its name. framework: the training software of a predicted run; framework_is_default: whether the scenario left it
    out. ranks: processes or devices; compute_ranks: those that train (the others are servers).
    samples: per step, over all workers; tokens: per step, if the model reads tokens.
    step_time_s: slope over steady steps. phase_s: mean seconds per step and training rank in each phase of its main stream.
    breakdown_s: step time by cause, adding up to step_time_s; "slowest_rank" is the predicted difference between the compute
    time of the slowest rank that others wait for and the mean. communication_s: mean seconds per step and training rank with
    transfers in flight: "exposed" while the rank waits for them, "hidden" while it computes or waits for something else.
    communication: the same by dimension and collective, the most exposed first; only predicted runs know it.
    model_flops: of a step's forward and backward passes over all samples; hardware_flops: including recomputation;
    peak_flops: FLOP/s of a training rank's device at the training precision; device_noun: what that device is called.
    scaling: weak and strong scaling, by these words.
    memory_bytes_per_rank: peak of the rank that needs the most of its device's memory; memory_bytes: the same by holder;
    memory_by_stage: of each kind of training rank; capacity_bytes: capacity of a rank; fits: whether it suffices; fit_by:
    settings with which it does; fit_by_note: what they cost; adapters_fit_by: settings with which adapters fit
    where training all parameters does not; host_problem: that the memory of hosts does not suffice for servers or what
    is offloaded; server_memory: of the fullest server, with the capacity of its node; memory_interval_bytes: 90 % interval of
    the peak, and fits_probability, which follows from the same errors of published runs; None where no error is known.
    energy_J, cost_USD: "per_step", "per_million_samples" and, with tokens, "per_million_tokens".
    servers: parameter servers and their workers. to_target: updates and samples to a target loss.
    loading: rates of data loading, where the scenario has it. host_update_share: share of the step in which ranks wait for the
    optimizer's step on their hosts; None where devices take it. host_share: share of compute in which kernels wait until the
    host has launched them; None where it is not known. textbook_bubble: share of the step that a pipeline of equal stages would
    wait, (p - 1) / (v m + p - 1) with p stages of v chunks and m microbatches; None for other schedules.

    Only predicted runs: prediction_interval_s, the 90 % interval of the step time under uncertain cluster parameters; spread:
    the share of the variance of its logarithm that each parameter causes, the largest first; step_distribution: of the times
    of single steps, which vary within a run; capture: of captured scripts, how kernel times are known, and memory by module and
    line. Only measured runs: compute, real
    or emulated by waiting for the predicted time ("paced"), so that the run measures communication; step_time_interval_s: 95 %
    confidence interval, if there are enough steps; losses: of each step, mean over the samples; update_losses: of each update
    after the warm-up, over its samples, if workers are asynchronous; verified: the comparison of parameters with those of one
    process that follows the same rule. Their memory_bytes are those that torch's allocator has
    allocated, and those that it has reserved in addition.
    """

    # of files, which may be damaged
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    origin: Origin
    scenario: str
    strategy: str
    ranks: PositiveInt
    compute_ranks: PositiveInt
    samples: PositiveInt
    step_time_s: PositiveFloat
    step_times_s: tuple[float, ...]
    phase_s: Mapping[str, float]
    breakdown_s: Mapping[str, float]
    communication_s: Mapping[str, float] = field(default_factory=dict)
    communication: tuple[CommunicationPart, ...] = ()
    framework: str = ""
    framework_is_default: bool = False
    tokens: PositiveInt | None = None
    model_flops: float | None = None
    hardware_flops: float | None = None
    peak_flops: float | None = None
    device_noun: str = "rank"
    scaling: Mapping[str, Scaling] = field(default_factory=dict)
    memory_bytes_per_rank: float | None = None
    memory_bytes: Mapping[str, float] | None = None
    memory_by_stage: tuple[StageMemory, ...] = ()
    server_memory: StageMemory | None = None
    capacity_bytes: float | None = None
    fits: bool | None = None
    memory_interval_bytes: tuple[float, float] | None = None
    fits_probability: float | None = None
    fit_by: str = ""
    fit_by_note: str = ""
    adapters_fit_by: str = ""
    host_problem: str = ""
    energy_J: Mapping[str, float] | None = None
    cost_USD: Mapping[str, float] | None = None
    servers: ServerStatistics | None = None
    loading: LoadingRates | None = None
    host_share: float | None = None
    host_update_share: float | None = None
    textbook_bubble: float | None = None
    to_target: TargetEstimate | None = None
    compute: Literal["real", "paced"] | None = None
    step_time_interval_s: tuple[float, float] | None = None
    prediction_interval_s: tuple[PositiveFloat, PositiveFloat] | None = None
    spread: Mapping[str, float] = field(default_factory=dict)
    step_distribution: StepDistribution | None = None
    losses: tuple[Annotated[float, AllowInfNan()], ...] = ()
    update_losses: tuple[Annotated[float, AllowInfNan()], ...] = ()
    verified: Verification | None = None
    capture: CaptureFacts | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    rank_names: tuple[str, ...] = ()
    spans: InstanceOf[Spans] | None = None

    @property
    def framework_words(self) -> str:
        """Name of the framework, with 'by default' if the scenario names no framework; empty if it is not known."""
        return framework_words(self.framework, self.framework_is_default)

    @property
    def efficiency(self) -> Mapping[str, float] | None:
        """Scaling efficiency by kind; None if it is not known."""
        return {kind: one.efficiency for kind, one in self.scaling.items()} or None

    @property
    def speed_up(self) -> Mapping[str, float] | None:
        """Speed-up over the baseline by kind of scaling; None if it is not known."""
        return {kind: one.speed_up for kind, one in self.scaling.items() if one.speed_up is not None} or None

    @property
    def baseline(self) -> Mapping[str, str] | None:
        """Description of the baseline by kind of scaling; None if it is not known."""
        return {kind: one.baseline for kind, one in self.scaling.items() if one.baseline} or None

    @property
    def step_quantiles_s(self) -> Mapping[str, float] | None:
        """Seconds of a step at percentiles, by name such as "p95": of the predicted distribution, or of measured steps; None
        where neither is known."""
        if self.step_distribution is not None:
            return self.step_distribution.quantiles_s
        return measured_quantiles_s(self.step_times_s) if self.origin == "measured" and self.step_times_s else None

    @property
    def samples_known(self) -> bool:
        """Whether samples of a step are known; otherwise all that a worker takes in a step counts as one."""
        return self.capture is None or self.capture.samples_known

    @property
    def samples_per_s(self) -> float:
        """Throughput in samples per second, over all workers."""
        return self.samples / self.step_time_s if self.step_time_s > 0 else float("inf")

    @property
    def samples_per_s_per_rank(self) -> float:
        """Samples per second and training rank."""
        return self.samples_per_s / self.compute_ranks

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second; None for models without tokens."""
        return None if self.tokens is None else self.samples_per_s * self.tokens / self.samples

    @property
    def tokens_per_s_per_rank(self) -> float | None:
        """Tokens per second and training rank; None for models without tokens."""
        return None if self.tokens_per_s is None else self.tokens_per_s / self.compute_ranks

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation (arXiv 2204.02311, appendix B), by the FLOPs of the passes; None where it is not known."""
        return self._utilisation(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation (arXiv 2205.05198, section 6.3), recomputation included; None where it is not known."""
        return self._utilisation(self.hardware_flops)

    def _utilisation(self, flops: float | None) -> float | None:
        """FLOPs of a step as a share of those that all training ranks could compute in its time."""
        possible_flops = self.compute_ranks * (self.peak_flops or 0.0) * self.step_time_s
        return None if flops is None or possible_flops == 0 else flops / possible_flops

    @property
    def bubble_fraction(self) -> float:
        """Share of a step in which training ranks wait for other stages, mean over ranks."""
        return self.breakdown_s.get("bubble", 0.0) / self.step_time_s if self.step_time_s > 0 else 0.0

    @property
    def time_to_target_s(self) -> float | None:
        """Seconds to the target loss, with the scenario's model of convergence."""
        return None if self.to_target is None else self.to_target.samples / self.samples_per_s

    @property
    def time_to_target_interval_s(self) -> tuple[float, float] | None:
        """The 90 % interval of the seconds to the target loss.

        The errors of step time and number of steps are independent, so that the squares of their logarithms add up.
        """
        time_s, step_s = self.time_to_target_s, self.prediction_interval_s or (self.step_time_s, self.step_time_s)
        if self.to_target is None or time_s is None or min(*step_s, self.step_time_s) <= 0:
            return None
        steps_width = math.log(self.to_target.steps_interval[1] / self.to_target.steps)
        if self.prediction_interval_s is None and steps_width == 0:
            return None
        low, high = (math.log(edge_s / self.step_time_s) for edge_s in step_s)
        added = [math.hypot(width, steps_width) - abs(width) for width in (low, high)]
        return time_s * math.exp(low - added[0]), time_s * math.exp(high + added[1])

    @property
    def disturbed(self) -> str:
        """What disturbed the measurement, or that of a prediction's cluster, as a sentence; empty if nothing did."""
        return self.provenance.get(DISTURBED, "")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that limit the validity of the run."""
        return tuple(self.provenance.get("warnings", "").splitlines())

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on what was predicted."""
        return tuple(self.provenance.get("notes", "").splitlines())

    def warned(self, *more: str) -> Run:
        """The run with more warnings."""
        if not more:
            return self
        return replace(self, provenance={**self.provenance, "warnings": "\n".join((*self.warnings, *more))})

    def __repr__(self) -> str:
        facts = self.facts()
        lines = [f"{facts.pop('run')}", *(f"  {name}: {text}" for name, text in facts.items())]
        return "\n".join(lines)

    def facts(self) -> dict[str, str]:
        """The key figures in words, by name: at most five, those that are known."""
        over = "" if self.fits is not False else "OUT OF MEMORY: "
        facts = {
            "run": f"{over}{self.scenario}: {self.strategy} on {counted(self.ranks, 'rank')}, {self.origin}",
            "step time": format_time_s(self.step_time_s),
            "throughput": f"{format_number(self.samples_per_s)} samples/s" if self.samples_known else "samples not known",
        }
        if self.prediction_interval_s:
            low, high = map(format_time_s, self.prediction_interval_s)
            facts["step time"] += f" (90 % interval {format_range(low, high)})"
        if self.tokens_per_s is not None:
            facts["throughput"] = f"{format_number(self.tokens_per_s)} tokens/s"
        if self.mfu is not None:
            facts["throughput"] += f", MFU {format_percent(self.mfu)}"
        if self.memory_bytes_per_rank is not None:
            of = f" of {format_bytes(self.capacity_bytes)}" if self.capacity_bytes else ""
            facts["memory"] = f"{format_bytes(self.memory_bytes_per_rank)}{of} per rank"
            if self.host_problem:
                facts["memory"] += f"; {self.host_problem}"
        if self.fits is False and self.fit_by:
            facts["memory"] += f"; fits with {self.fit_by}" + (f" ({self.fit_by_note})" if self.fit_by_note else "")
        causes = sorted(self.breakdown_s, key=self.breakdown_s.__getitem__, reverse=True)[:_CAUSES]
        shares = {cause: self.breakdown_s[cause] / self.step_time_s for cause in causes if self.step_time_s > 0}
        parts = [f"{name.replace('_', ' ')} {format_percent(share)}" for name, share in shares.items() if share >= _MIN_SHARE]
        return facts | ({"breakdown": ", ".join(parts)} if parts else {})

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row with the numbers and texts of the summary; column names end in units. Needs pandas."""
        import pandas as pd

        values = self.to_dict()
        row = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
        if self.prediction_interval_s:
            row |= dict(zip(("step_time_low_s", "step_time_high_s"), self.prediction_interval_s, strict=True))
        row |= {f"{cause}_s": seconds for cause, seconds in self.breakdown_s.items()}
        return pd.DataFrame([row])

    def to_json(self) -> str:
        """What `to_dict` gives, as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """All fields except the spans, and derived properties, as plain data for JSON."""
        names = [field.name for field in fields(self) if field.name not in ("spans", "scaling")]
        return {name: _plain(getattr(self, name)) for name in (*names, *DERIVED)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


def framework_words(name: str, is_default: bool) -> str:
    """The name of a framework, as in 'megatron-core-0.12, by default' if the scenario does not name it."""
    return f"{name}, by default" if name and is_default else name
