"""Predictions of published steps of pipeline schedules, from the times of a stage's passes and of a message in the rows.

A row's times are means over the ranks, which differ. What rows do not state is from their source, arXiv 2401.10241, sections 4
and 5: stages have equal numbers of layers, where the embedding and the output head count as one each; in 1F1B-I every layer is
a chunk; zero-bubble schedules send while they compute, and validate the optimizer's step afterwards, so that ranks need not end
a step together; Megatron-LM's 1F1B waits for its sends (its option `no-overlap-p2p-communication`, as in the source's scripts)
and for all ranks' gradients before the optimizer's step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.proof.published.prediction import Options, Prediction, Uncertainty
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.links import Node
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import simulate
from scaleproof.simulator.frameworks import IDEAL, Framework
from scaleproof.simulator.model import Gpt
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.prediction.steps import STEPS
from scaleproof.simulator.run.breakdown import slope
from scaleproof.simulator.scenario.framework_choice import usual_framework
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.strategy.compile import compile_plan
from scaleproof.simulator.strategy.job import Costs, Job
from scaleproof.simulator.strategy.pipeline.schedules import PassTimes
from scaleproof.simulator.uncertainty.error_model import ErrorCase

Row = Mapping[str, str]

CALIBRATION: Final[tuple[str, ...]] = ()
_SCHEDULES: Final[Mapping[str, ScheduleName]] = {
    "GPipe": "gpipe", "1F1B": "1f1b", "1F1B-I": "interleaved_1f1b", "ZB-H1": "zb_h1", "ZB-H2": "zb_h2", "ZB-1p": "zb_1p",
    "ZB-2p": "zb_2p", "ZB-V": "zb_v",
}  # fmt: skip
# suffix of a zero-bubble schedule whose ranks nevertheless end a step together
_SYNCHRONISED: Final = " with all-reduce sync"
# Upper bound of layers, tokens, milliseconds and so on.
_MOST: Final = 10**9
# A shipped cluster with the source's GPUs, A100 SXM 80 GB; times of passes and of messages are those of the rows.
_CLUSTER: Final = "selene-a100"
_PRECISION: Final = "fp16"
# Attention heads by hidden size: arXiv 2401.10241, table 3. Other sizes have heads of 128 elements.
_HEAD: Final = 128
_HEADS: Final = {2304: 24, 4096: 32, 5120: 40, 6144: 48}
# Assumed, as for Llama: the source's scripts use a SentencePiece tokenizer, and with this vocabulary its models have the
# numbers of parameters in their names.
_VOCABULARY: Final = 32_000
_ASSUMED: Final = ("software", "gpu", "heads", "vocabulary")
_TIMES: Final = ("forward_ms", "backward_input_ms", "backward_weight_ms", "p2p_ms")
_NUMBERS: Final = ("layers", "hidden", "seq_len", "stages", "microbatch_seqs", "microbatches")
_CASE: Final = ErrorCase("schedules")
# rows with equal values of these differ only in their schedule
_SHAPE: Final = ("table", "model", "gpus", *_NUMBERS, *_TIMES)


def predict(row: Row, options: Options = Options()) -> Prediction:  # noqa: B008 (it never changes)
    """Predicted time of a step. Rows that cannot be predicted are skipped with the reason."""
    name = " ".join(filter(None, (row.get("source_set") or "not named", row.get("table"))))
    try:
        measured_s, given = _positive(float(row["step_time_s"])), parse_row(row)
    except InputError as error:
        return Prediction(name, skipped=str(error))
    except ValueError:
        return Prediction(name, skipped="no time of the step, of passes or of messages, or no readable shape")
    try:
        predicted_s = step_s(given, _framework())
    except ScaleproofError as error:
        return Prediction(name, skipped=str(error).partition(";")[0])
    shape = tuple(row.get(column, "") for column in _SHAPE)
    # times of passes and messages are given, so only the simulator's model error is uncertain
    # one paper has such rows: its parts are the sources
    source = f"{row.get('model', '')} {row['schedule']}"
    low, high = _CASE.log_ends(_shipped(), options.errors(source))
    interval_s = predicted_s * math.exp(low), predicted_s * math.exp(high)
    inputs = (*shape, row["schedule"])
    return Prediction(
        name, predicted_s, measured_s, assumed=_ASSUMED, inputs=inputs, pairs=shape, interval=interval_s,
        source=source, uncertainty=Uncertainty(_CASE), framework=_framework().name,
    )  # fmt: skip


class PipelineRow(NamedTuple):
    """Contents of a row. times: of a chunk as long as a stage. ranks: of the pipeline. samples: of a microbatch."""

    schedule: ScheduleName
    synchronised: bool
    times: PassTimes
    layers: int
    hidden: int
    tokens: int
    ranks: int
    samples: int
    microbatches: int


def parse_row(row: Row) -> PipelineRow:
    """Parses a row. Raises ValueError for a missing number, InputError if the row cannot be predicted."""
    name = row["schedule"].removesuffix(_SYNCHRONISED)
    if name not in _SCHEDULES:
        raise InputError(f"unknown schedule: {name}")
    schedule = _SCHEDULES[name]
    times = PassTimes(*(_positive(float(row[column])) * 1e-3 for column in _TIMES))
    numbers = [round(_positive(int(row[column]))) for column in _NUMBERS]
    if int(row["gpus"]) != int(row["stages"]):
        raise InputError(f"{row['gpus']} GPUs for {row['stages']} stages")
    synchronised = not name.startswith("ZB") or name != row["schedule"]
    return PipelineRow(schedule, synchronised, times, *numbers)


@cache
def _framework() -> Framework:
    """The default framework of such training, since no row names its software."""
    gpt = Gpt(layers=2, hidden=_HEAD, heads=1, vocabulary=_VOCABULARY, sequence=_HEAD)
    return usual_framework(Hybrid(stages=2), _PRECISION, 0, gpt, _shipped())


def step_s(given: PipelineRow, framework: Framework = IDEAL) -> float:
    """Seconds of one step. Raises InputError if the layers cannot be divided equally, or the schedule has no order."""
    heads = _HEADS.get(given.hidden, max(1, given.hidden // _HEAD))
    gpt = Gpt(
        layers=given.layers, hidden=given.hidden, heads=heads, vocabulary=_VOCABULARY, sequence=given.tokens,
        flash=False, dropout=True,
    )  # fmt: skip
    parts = gpt.build_layers()
    chunks = {"interleaved_1f1b": len(parts) // given.ranks, "zb_v": 2}.get(given.schedule, 1)
    plan = Plan(stages=given.ranks, chunks=chunks, microbatches=given.microbatches, schedule=given.schedule)
    stages = _cut(len(parts), given.ranks * chunks)
    overlaps = given.schedule.startswith("zb")
    cluster = _cluster(given.ranks, given.times.send if overlaps else 0.0)
    samples = given.samples * given.microbatches
    job = _GivenJob(
        parts, cluster, samples, _PRECISION, "adam", framework=framework, given=given, waits=() if overlaps else stages
    )
    return _timed_s(plan, job, stages, given.synchronised)


def _positive(number: float) -> float:
    if not 0 < number <= _MOST:
        raise ValueError(f"{number:g} is out of range")
    return number


def _cut(parts: int, stages: int) -> tuple[range, ...]:
    """Equal numbers of layers on every stage. Raises InputError if they cannot be divided so."""
    per_stage, rest = divmod(parts, stages)
    if rest or not per_stage:
        raise InputError(f"{parts} layers, with embedding and head, on {stages} stages")
    return tuple(range(stage * per_stage, (stage + 1) * per_stage) for stage in range(stages))


def _cluster(ranks: int, send_s: float) -> Cluster:
    """A node of `ranks` devices, between which a message takes `send_s` seconds."""
    node = Node.model_validate({"devices": ranks, "link": {"bandwidth": "1 EB/s", "latency": f"{send_s} s"}})
    return _shipped().model_copy(update={"nodes": 1, "node": node})


@cache
def _shipped() -> Cluster:
    return load_cluster(_CLUSTER)


@dataclass(frozen=True, kw_only=True)
class _GivenJob(Job):
    """A job whose passes take the given seconds in the mean over ranks, divided among layers as the device's model has it.

    waits: stages whose rank is blocked while it sends to the next or previous one.
    """

    given: PipelineRow
    waits: Sequence[range]

    def costs(self, microbatches: int = 1) -> Costs:
        modelled, weights_s = super().costs(microbatches), super().weights_s(microbatches)
        inputs_s = self._scaled(modelled.backward_s - weights_s, self.given.times.backward_input)
        forward_sends_s, backward_sends_s = (np.zeros(len(self.layers)) for _ in range(2))
        forward_sends_s[[stage[-1] for stage in self.waits[:-1]]] = self.given.times.send
        backward_sends_s[[stage[0] for stage in self.waits[1:]]] = self.given.times.send
        return replace(
            modelled,
            forward_s=self._scaled(modelled.forward_s, self.given.times.forward),
            backward_s=inputs_s + self.weights_s(microbatches),
            forward_exchange_s=forward_sends_s,
            backward_exchange_s=backward_sends_s,
        )

    def weights_s(self, microbatches: int = 1) -> NDArray[np.float64]:
        return self._scaled(super().weights_s(microbatches), self.given.times.backward_weight)

    def _scaled(self, modelled_s: NDArray[np.float64], mean_s: float) -> NDArray[np.float64]:
        result: NDArray[np.float64] = modelled_s * (mean_s * self.given.ranks / modelled_s.sum())
        return result


def _timed_s(plan: Plan, job: Job, stages: Sequence[range], synchronised: bool) -> float:
    """Seconds from step to step; if synchronised, the slowest rank's optimizer follows the last pass of any rank."""
    program = compile_plan(plan, job, stages)
    timeline = simulate(program, STEPS)
    if not synchronised:
        return slope(timeline.step_ends_s())
    optimizers = program.phase == Phase.OPTIMIZER
    start_s, end_s = timeline.start_s[0], timeline.end_s[0]
    return float(end_s[~optimizers].max() + (end_s - start_s)[optimizers].max())
