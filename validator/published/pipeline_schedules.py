"""Published steps of pipeline schedules, predicted from the times of a stage's passes and of a message, which the rows give.

A row's times are taken as the mean of the ranks, which are not alike. What rows do not say is of their source, arXiv
2401.10241, sections 4 and 5: stages have as many layers each, where the embedding and the output head count as one; in
1F1B-I every layer is a chunk; zero-bubble schedules send while they compute and validate the optimizer's step afterwards, so
that ranks need not end a step together; Megatron-LM's 1F1B waits for what it sends (its option `no-overlap-p2p-communication`,
as in the source's scripts) and for all ranks' gradients before the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.links import Node
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.engine import simulate
from scaleproof.simulator.frameworks import IDEAL, Framework
from scaleproof.simulator.model import Gpt
from scaleproof.simulator.run.run import Phase, slope
from scaleproof.simulator.run.scaling import STEPS
from scaleproof.simulator.scenario.framework_choice import default_framework
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.strategy import Hybrid
from scaleproof.simulator.strategy.compile import compile_plan
from scaleproof.simulator.strategy.job import Costs, Job
from scaleproof.simulator.strategy.pipeline.schedule import PassTimes, ScheduleName
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.validator.published.score import Prediction

Row = Mapping[str, str]

CALIBRATION: Final[tuple[str, ...]] = ()
_SCHEDULES: Final[Mapping[str, ScheduleName]] = {
    "GPipe": "gpipe", "1F1B": "1f1b", "1F1B-I": "interleaved_1f1b", "ZB-H1": "zb_h1", "ZB-H2": "zb_h2", "ZB-1p": "zb_1p",
    "ZB-2p": "zb_2p", "ZB-V": "zb_v",
}  # fmt: skip
# how the name of a zero-bubble schedule goes on whose ranks end a step together all the same
_SYNCHRONISED: Final = " with all-reduce sync"
# Of layers, tokens, milliseconds.
_MOST: Final = 10**9
# A shipped cluster with the source's GPUs, A100 SXM 80 GB; times of passes and of messages are the rows' own.
_CLUSTER: Final = "selene-a100"
_PRECISION: Final = "fp16"
# Attention heads by hidden size: arXiv 2401.10241, table 3. Of 128 elements where it is another.
_HEAD: Final = 128
_HEADS: Final = {2304: 24, 4096: 32, 5120: 40, 6144: 48}
# Assumed, as Llama's: the source's scripts name a SentencePiece tokenizer, and with so many tokens its models have as many
# parameters as their names say.
_VOCABULARY: Final = 32_000
_ASSUMED: Final = ("software", "gpu", "heads", "vocabulary")
_TIMES: Final = ("forward_ms", "backward_input_ms", "backward_weight_ms", "p2p_ms")
_NUMBERS: Final = ("layers", "hidden", "seq_len", "stages", "microbatch_seqs", "microbatches")
# rows that share these differ by their schedule alone
_SHAPE: Final = ("table", "model", "gpus", *_NUMBERS, *_TIMES)


def predict(row: Row) -> Prediction:
    """The time of a step. What cannot be predicted is skipped with its reason."""
    name = " ".join(filter(None, (row.get("source_set") or "not named", row.get("table"))))
    try:
        measured_s, given = _positive(float(row["step_time_s"])), read(row)
    except InputError as error:
        return Prediction(name, skipped=str(error))
    except ValueError:
        return Prediction(name, skipped="no time of the step, of passes or of messages, or no shape that can be read")
    try:
        predicted_s = step_s(given, _framework())
    except ScaleproofError as error:
        return Prediction(name, skipped=str(error).partition(";")[0])
    shape = tuple(row.get(column, "") for column in _SHAPE)
    # what passes and messages take is given: what is left out of the model alone is uncertain
    low, high = QUANTITIES["model"].slownesses(_shipped())
    interval_s = predicted_s * low, predicted_s * high
    inputs = (*shape, row["schedule"])
    return Prediction(
        name, predicted_s, measured_s, assumed=_ASSUMED, inputs=inputs, pairs=shape, interval=interval_s,
        framework=_framework().name,
    )  # fmt: skip


class Given(NamedTuple):
    """What a row gives. times: of a chunk as long as a stage. ranks: of the pipeline. samples: of a microbatch."""

    schedule: ScheduleName
    synchronised: bool
    times: PassTimes
    layers: int
    hidden: int
    tokens: int
    ranks: int
    samples: int
    microbatches: int


def read(row: Row) -> Given:
    """What a row gives. Raises ValueError where a number is missing, InputError for what cannot be predicted."""
    name = row["schedule"].removesuffix(_SYNCHRONISED)
    if name not in _SCHEDULES:
        raise InputError(f"unknown schedule: {name}")
    schedule = _SCHEDULES[name]
    times = PassTimes(*(_positive(float(row[column])) * 1e-3 for column in _TIMES))
    numbers = [round(_positive(int(row[column]))) for column in _NUMBERS]
    if int(row["gpus"]) != int(row["stages"]):
        raise InputError(f"{row['gpus']} GPUs for {row['stages']} stages")
    synchronised = not name.startswith("ZB") or name != row["schedule"]
    return Given(schedule, synchronised, times, *numbers)


@cache
def _framework() -> Framework:
    """The default of such training: no row names its software."""
    gpt = Gpt(layers=2, hidden=_HEAD, heads=1, vocabulary=_VOCABULARY, sequence=_HEAD)
    return default_framework(Hybrid(stages_=2), _PRECISION, 0, gpt, _shipped())


def step_s(given: Given, framework: Framework = IDEAL) -> float:
    """Seconds of one step. Raises InputError where the layers do not divide, or the schedule has no order."""
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
        raise ValueError(f"{number:g} is no amount")
    return number


def _cut(parts: int, stages: int) -> tuple[range, ...]:
    """As many layers on every stage. Raises InputError where they do not divide so."""
    each, rest = divmod(parts, stages)
    if rest or not each:
        raise InputError(f"{parts} layers, with embedding and head, on {stages} stages")
    return tuple(range(stage * each, (stage + 1) * each) for stage in range(stages))


def _cluster(ranks: int, send_s: float) -> Cluster:
    """A node of so many devices, between which a message takes so long."""
    node = Node.model_validate({"devices": ranks, "link": {"bandwidth": "1 EB/s", "latency": f"{send_s} s"}})
    return _shipped().model_copy(update={"nodes": 1, "node": node})


@cache
def _shipped() -> Cluster:
    return load_cluster(catalog.find_part("cluster", _CLUSTER, Path()))


@dataclass(frozen=True, kw_only=True)
class _GivenJob(Job):
    """A job whose ranks' passes take what is given in their mean; layers take the shares that the device's model says.

    waits: the stages, where a rank does nothing else while it sends what the next one needs.
    """

    given: Given
    waits: Sequence[range]

    def costs(self, microbatches: int = 1) -> Costs:
        modelled, weights_s = super().costs(microbatches), super().weights_s(microbatches)
        inputs_s = self._given(modelled.backward_s - weights_s, self.given.times.backward_input)
        forward_sends_s, backward_sends_s = (np.zeros(len(self.layers)) for _ in range(2))
        forward_sends_s[[stage[-1] for stage in self.waits[:-1]]] = self.given.times.send
        backward_sends_s[[stage[0] for stage in self.waits[1:]]] = self.given.times.send
        return replace(
            modelled,
            forward_s=self._given(modelled.forward_s, self.given.times.forward),
            backward_s=inputs_s + self.weights_s(microbatches),
            forward_exchange_s=forward_sends_s,
            backward_exchange_s=backward_sends_s,
        )

    def weights_s(self, microbatches: int = 1) -> NDArray[np.float64]:
        return self._given(super().weights_s(microbatches), self.given.times.backward_weight)

    def _given(self, modelled_s: NDArray[np.float64], mean_s: float) -> NDArray[np.float64]:
        result: NDArray[np.float64] = modelled_s * (mean_s * self.given.ranks / modelled_s.sum())
        return result


def _timed_s(plan: Plan, job: Job, stages: Sequence[range], synchronised: bool) -> float:
    """Seconds from step to step; where synchronised, the slowest rank's optimizer after the last pass of any rank."""
    program = compile_plan(plan, job, stages)
    timeline = simulate(program, STEPS)
    if not synchronised:
        return slope(timeline.step_ends_s())
    optimizers = program.phase == Phase.OPTIMIZER
    start_s, end_s = timeline.start_s[0], timeline.end_s[0]
    return float(end_s[~optimizers].max() + (end_s - start_s)[optimizers].max())
