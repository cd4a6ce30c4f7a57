"""Plans as data: what a plan of one number of GPUs reports, in JSON and for pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
from pydantic import Field

from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.analysis.planner.search import PlanChoice, PlanResult
from scaleproof.simulator.common.errors import naming_extras
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.memory import capacity_bytes, memory
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.parallelism.option_rules import has_effect
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.predict import loading
from scaleproof.simulator.run.bottleneck import INPUT_BOUND, bound
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.totals import Estimate, TrainingTotals
from scaleproof.simulator.scenario.dump import dump, dump_framework, dump_part
from scaleproof.simulator.uncertainty.linear_response import LinearResponse
from scaleproof.simulator.uncertainty.pairwise import common_error_share, is_tie, reversed_share, with_reversals
from scaleproof.simulator.uncertainty.unmodelled import most_s, unmodelled

if TYPE_CHECKING:
    import pandas as pd

# Number of faster configurations that do not fit.
_MOST_TOO_LARGE: Final = 5


def _texts(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose lists are texts."""
    return {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in configuration.items()}


class PlanRow(Record):
    """A configuration with its prediction. configuration: values of scenario fields by name. low_s, high_s: the 90 % interval
    of the step time. fits_probability: that its memory fits; None where the error of predicted memory is not known.
    best_is_better: probability that the best configuration is better by the objective; None for the best itself.
    gpus: number of devices that it uses."""

    strategy: str
    configuration: dict[str, Any]
    step_time_s: float
    low_s: float
    high_s: float
    breakdown_s: dict[str, float]
    samples_per_s: float
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    flops_per_gpu: float | None
    memory_bytes: float
    fits_probability: float | None = None
    cost_USD: dict[str, float] | None
    energy_J: dict[str, float] | None
    best_is_better: float | None = None
    gpus: int = 0

    @property
    def row(self) -> dict[str, Any]:
        """A row of a table: numbers, costs by unit, and the configuration."""
        plain = self.model_dump(exclude={"configuration", "breakdown_s", "cost_USD", "energy_J", "gpus"})
        costs = {f"cost_USD_{unit}": amount for unit, amount in (self.cost_USD or {}).items()}
        return plain | costs | _texts(self.configuration)

    @property
    def is_tied(self) -> bool:
        """Whether the best configuration is a tie with this one, or is this one."""
        return self.best_is_better is None or is_tie(self.best_is_better)

    @property
    def sums_buckets(self) -> bool:
        """Whether gradients are summed in buckets, so that their size has an effect."""
        if self.strategy != "hybrid":
            return True
        degrees = {name: self.configuration[name] for name in ("workers", "tensor", "context", "expert", "expert_tensor")}
        given = {"averages": Plan(**degrees).averages, "zero": self.configuration["zero"]}
        return has_effect(Hybrid, "bucket_bytes", given)


class MethodRow(Record):
    """The best configuration with a method of fine-tuning, which trains other parameters than other methods. problem: why there
    is none."""

    method: str
    trained_parameters: int
    parameters: int
    best: PlanRow | None = None
    problem: str = ""


class FrontPoint(Record):
    """A configuration on the Pareto front of estimated step time and memory."""

    configuration: dict[str, Any]
    estimated_s: float
    memory_bytes: float

    @property
    def row(self) -> dict[str, Any]:
        """A row of a table: its numbers and the configuration."""
        return self.model_dump(exclude={"configuration"}) | _texts(self.configuration)


class TooLarge(FrontPoint):
    """A configuration that would be faster than the best but does not fit, though in twice the memory. holders_bytes: by
    holder, of the rank with the most memory."""

    holders_bytes: dict[str, float]


class ServerCount(Record):
    """The shortest estimated step with a number of parameter servers."""

    placement: str
    servers: int
    estimated_s: float


class PlanRecord(Record):
    """The plan of one number of GPUs.

    key: digest of the inputs other than the number of GPUs. nodes: of the cluster; added_nodes: those that the plan added to
    it. samples: the global batch. device_bytes: capacity of a device; capacity_bytes: predicted bytes that a plan may need, so
    that it fits with the probability `fits`; wanted_fits: the probability that was wanted. replayed, predicted: numbers of
    configurations. best: the best first. runner_up: the best with other degrees of model parallelism. riskier: the best of
    those that fit with a lower probability, if it is better. memory_bytes: of the best by holder. too_large: faster ones that
    do not fit. fields: lines of a scenario file for the best; scenario_yaml: all of it. training: totals of a whole training
    run by the best, where wanted. methods: of fine-tuning that were compared; all else is about the first of them that has a
    plan. by_nodes: the best of each selection of unequal nodes. input: rates of data loading, if the best waits for samples.
    problem: why there is no plan; then nothing else is known but the size.
    """

    version: str
    key: str = ""
    gpus: int
    scenario: str
    model: str
    cluster: str
    nodes: int
    added_nodes: int = 0
    samples: int
    tokens_per_sample: int | None = None
    objective: Objective = "time"
    problem: str = ""
    configurations: int = 0
    fitting: int = 0
    capacity_bytes: float = 0.0
    device_bytes: float = 0.0
    estimate_seconds: float = 0.0
    fits: float | None = None
    wanted_fits: float | None = None
    replayed: int = 0
    predicted: int = 0
    search_seconds: float = 0.0
    proved: bool = False
    unmodelled: list[str] = Field(default_factory=list)
    frameworks: list[str] = Field(default_factory=list)
    framework_is_default: bool = False
    best: list[PlanRow] = Field(default_factory=list)
    runner_up: PlanRow | None = None
    riskier: PlanRow | None = None
    memory_bytes: dict[str, float] = Field(default_factory=dict)
    too_large: list[TooLarge] = Field(default_factory=list)
    front: list[FrontPoint] = Field(default_factory=list)
    server_counts: list[ServerCount] = Field(default_factory=list)
    fields: list[str] = Field(default_factory=list)
    scenario_yaml: str = ""
    input: str = ""
    training: TrainingTotals | None = None
    methods: list[MethodRow] = Field(default_factory=list)
    by_nodes: list[PlanRow] = Field(default_factory=list)

    @property
    def unit(self) -> Literal["tokens", "samples"]:
        """The unit of throughput."""
        return "samples" if self.tokens_per_sample is None else "tokens"

    def per_second(self, step_s: float) -> float:
        """Throughput for a step time, in tokens per second, or samples per second for models without tokens."""
        return self.samples * (self.tokens_per_sample or 1) / step_s

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The best configurations as rows of a table, the best first."""
        return [{"gpus": self.gpus, "number": number} | one.row for number, one in enumerate(self.best, start=1)]

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row for each of the best configurations; column names end in units. Needs pandas."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    @property
    def run(self) -> Run:
        """The run of the best configuration."""
        row = self.best[0]
        return Run(
            origin="predicted",
            scenario=self.scenario,
            strategy=row.strategy,
            ranks=row.gpus or self.gpus,
            compute_ranks=row.gpus or self.gpus,
            samples=self.samples,
            step_time_s=row.step_time_s,
            step_times_s=(),
            phase_s={},
            breakdown_s=row.breakdown_s,
            memory_bytes=self.memory_bytes,
            memory_bytes_per_rank=row.memory_bytes,
            capacity_bytes=self.device_bytes,
        )

    def with_totals(self, tokens: float | None, carbon_kg_per_J: float) -> Self:
        """The record with totals of training on a number of tokens, if given, by the best configuration. Raises InputError for
        models without tokens."""
        if tokens is None or self.problem:
            return self
        row = self.best[0]
        step_s = Estimate(value=row.step_time_s, low=row.low_s, high=row.high_s)
        per_step = None if self.tokens_per_sample is None else self.tokens_per_sample * self.samples
        totals = TrainingTotals.of(
            tokens, per_step, row.gpus or self.gpus, step_s, (row.cost_USD, row.energy_J), carbon_kg_per_J
        )
        return self.model_copy(update={"training": totals})

    @property
    def ties(self) -> list[int]:
        """Numbers of the configurations that are a tie with the best, which is number 1."""
        return [number for number, row in enumerate(self.best, start=1) if number > 1 and row.is_tied]


def record_of(planned: PlanResult, version: str, added_nodes: int = 0, key: str = "") -> PlanRecord:
    """The record of a plan. added_nodes: that the scenario's cluster got for the plan. key: digest of the inputs."""
    configurations, best = planned.configurations, planned.best
    base, first = configurations.base, best[0]
    choices = [*best, *filter(None, (planned.runner_up, planned.riskier)), *planned.by_nodes]
    response = configurations.response(np.array([choice.row for choice in choices]))
    rows = [_row(planned, response, choices, number) for number in range(len(choices))]
    return PlanRecord(
        version=version,
        key=key,
        gpus=planned.gpus,
        scenario=base.name,
        model=base.model.name or base.name,
        cluster="several kinds of nodes" if base.cluster.kinds else base.cluster.name or "its cluster",
        nodes=base.cluster.nodes,
        added_nodes=added_nodes,
        samples=base.total_samples,
        tokens_per_sample=base.tokens_per_sample,
        objective=planned.objective,
        configurations=len(configurations),
        fitting=planned.fitting,
        capacity_bytes=planned.capacity_bytes,
        device_bytes=capacity_bytes(first.scenario),
        fits=planned.room.fits,
        wanted_fits=planned.room.wanted,
        estimate_seconds=planned.estimate_s,
        replayed=planned.replayed,
        predicted=planned.predicted,
        search_seconds=planned.search_s,
        proved=planned.proved,
        unmodelled=[one.note for one in unmodelled(first.scenario)],
        frameworks=list(dict.fromkeys(part.space.scenario.framework.name for part in configurations.parts if len(part))),
        framework_is_default=planned.framework_is_default,
        best=rows[: len(best)],
        runner_up=None if planned.runner_up is None else rows[len(best)],
        riskier=None if planned.riskier is None else rows[len(best) + (planned.runner_up is not None)],
        by_nodes=rows[len(rows) - len(planned.by_nodes) :],
        memory_bytes=dict(memory(first.scenario).worst.holders_bytes),
        input=str(loading(first.scenario, first.run)) if bound(first.run) == INPUT_BOUND else "",
        too_large=list(_too_large(planned)),
        front=[_front_point(planned, row) for row in planned.front],
        server_counts=list(_server_counts(planned)),
        fields=[
            dump_framework(first.scenario),
            dump_part(first.scenario, "strategy"),
            dump_part(first.scenario, "training"),
        ],
        scenario_yaml=dump(
            first.scenario.model_copy(update={"name": f"{base.name}-{planned.gpus}-gpus"}),
            by_name=True,
        ),
    )


def _row(planned: PlanResult, response: LinearResponse, choices: list[PlanChoice], number: int) -> PlanRow:
    best, choice = choices[0], choices[number]
    run, (low, high) = choice.run, response.interval(number)
    # costs and energies are proportional to step times, so that their errors are equal
    ratio = choice.value / best.value
    better = None
    if number:
        faster = response.faster(0, number, ratio, common_error_share(best.scenario, choice.scenario))
        better = with_reversals(faster, reversed_share(best.scenario, choice.scenario))
    gpu_s = run.step_time_s * run.compute_ranks
    return PlanRow(
        strategy=choice.scenario.strategy.kind,
        configuration=planned.configurations.row(choice.row),
        step_time_s=run.step_time_s,
        low_s=low * run.step_time_s,
        high_s=high * run.step_time_s + most_s(choice.scenario),
        breakdown_s=dict(run.breakdown_s),
        samples_per_s=run.samples_per_s,
        tokens_per_s=run.tokens_per_s,
        tokens_per_s_per_gpu=run.tokens_per_s_per_rank,
        mfu=run.mfu,
        flops_per_gpu=None if run.model_flops is None else run.model_flops / gpu_s,
        memory_bytes=choice.memory_bytes,
        fits_probability=choice.fits_probability,
        cost_USD=None if run.cost_USD is None else dict(run.cost_USD),
        energy_J=None if run.energy_J is None else dict(run.energy_J),
        best_is_better=better,
        gpus=run.compute_ranks,
    )


def _front_point(planned: PlanResult, row: int) -> FrontPoint:
    return FrontPoint(
        configuration=planned.configurations.row(row),
        estimated_s=float(planned.expected_s[row]),
        memory_bytes=float(planned.memory_bytes[row]),
    )


def _too_large(planned: PlanResult) -> Iterator[TooLarge]:
    """Yields the fastest configurations that do not fit, but in twice the memory, and are estimated to be faster than the best,
    one for each combination of degrees of model parallelism."""
    configurations, best_s = planned.configurations, planned.expected_s[planned.best[0].row]
    rows = np.flatnonzero((planned.memory_bytes > planned.room.capacity_bytes) & (planned.expected_s < best_s))
    ordered = rows[np.argsort(planned.expected_s[rows], kind="stable")]
    for row in configurations.first_of_degrees(ordered)[:_MOST_TOO_LARGE]:
        holders_bytes = dict(memory(configurations.scenario(row)).worst.holders_bytes)
        yield TooLarge(**_front_point(planned, row).model_dump(), holders_bytes=holders_bytes)


def _server_counts(planned: PlanResult) -> Iterator[ServerCount]:
    """Yields the shortest estimated step that fits of each placement and number of parameter servers."""
    configurations = planned.configurations
    least_s: dict[tuple[str, int], float] = {}
    for row in np.flatnonzero(configurations.has_servers() & (planned.memory_bytes <= planned.capacity_bytes)).tolist():
        config, expected_s = configurations.row(row), float(planned.expected_s[row])
        key = config["placement"], config["servers"]
        least_s[key] = min(expected_s, least_s.get(key, expected_s))
    for (placement, servers), estimated_s in sorted(least_s.items()):
        yield ServerCount(placement=placement, servers=servers, estimated_s=estimated_s)
