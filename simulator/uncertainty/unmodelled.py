"""Parts of a scenario whose time is not modelled: what to say of them, and by how much they may prolong a step.

Each is one function of `_PARTS`. The prediction is that without their time; the upper end of its interval includes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.kernels import cpu_core
from scaleproof.simulator.cluster.device.kernels.cpu_core import backward_work, forward_work
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul, Operator, Scan, StepwiseMatmul
from scaleproof.simulator.model.recommender.hstu import POINTWISE_ATTENTION
from scaleproof.simulator.model.recommender.parts import lookups_of
from scaleproof.simulator.model.transformer.recurrent import SELECTIVE_SCAN
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.plan_costs import stage_layers
from scaleproof.simulator.strategy.scenario_job import job_of

# Most seconds of a call of an operator on a processor core, and time of its arithmetic over that at the peak rate: rounded up
# from small layers on one core of an Intel Xeon (torch 2.13, 1 December 2026), where calls took 10 to 70 us on average, and
# narrow convolutions ten times as long as at the peak rate.
_CALL_S: Final = 100e-6
_BELOW_PEAK: Final = 10.0
# Generations of GPUs that have no engine for JPEG, as A100 and its successors in data centres have.
_WITHOUT_ENGINES: Final = ("kepler", "pascal", "volta", "turing", "ampere-rtx")
# An irrational step, by which numbers of draws are spread evenly.
_GOLDEN: Final = 0.6180339887498949


class Unmodelled(NamedTuple):
    """A part of a step without a modelled time. note: what it is. most_s: its seconds if it overlaps with nothing."""

    note: str
    most_s: float


def unmodelled(scenario: Scenario) -> tuple[Unmodelled, ...]:
    """The parts of a scenario's step whose time is not modelled."""
    found = (part(scenario) for part in _PARTS)
    return tuple(one for one in found if one is not None)


def most_s(scenario: Scenario) -> float:
    """Seconds that all parts without a modelled time take at most in a step."""
    return sum(one.most_s for one in unmodelled(scenario))


def log_times(scenario: Scenario, step_s: float, draws: int) -> NDArray[np.float64]:
    """Logarithms of the factors by which parts without a modelled time prolong a step, shape (draws,): each time from none to
    the most is equally likely."""
    shares = (np.arange(1, draws + 1) * _GOLDEN) % 1.0
    return np.asarray(np.log1p(shares * most_s(scenario) / step_s))


def _repeated_recomputation(scenario: Scenario) -> Unmodelled | None:
    """Recomputation that passes for the gradients of weights repeat: torch.distributed.pipelining computes these weight
    by weight, and each unpacks the checkpoint of its block again (torch/distributed/pipelining/_backward.py)."""
    if scenario.training.recompute.kind == "none" or scenario.strategy.plan.schedule in WHOLE:
        return None
    plan, job = scenario.strategy.plan, job_of(scenario)
    samples = job.samples_per_worker / plan.microbatches

    def of_layer(layer: Layer) -> tuple[float]:
        weights = sum(isinstance(one, Matmul) and one.weight_gradient for one in layer.operators)
        return (weights * job.layer_passes_s(layer, samples)[2],)

    repeated_s = _of_busiest_rank(scenario, job, *job.where_recomputed(job.of_layers(of_layer)))
    note = (
        "recomputed activations are kept until the gradients of weights; torch.distributed.pipelining keeps their gradients "
        f"alone and recomputes again for each weight, which is not modelled; the interval includes {format_time_s(repeated_s)} "
        "a step"
    )
    return Unmodelled(note, repeated_s)


def _of_busiest_rank(scenario: Scenario, job: Job, layers_s: NDArray[np.float64]) -> float:
    """Seconds of all microbatches of a step on the rank whose stages take longest. layers_s: of one microbatch, shape
    (layers,)."""
    plan, stages = scenario.strategy.plan, stage_layers(scenario.strategy, job)
    return float(plan.microbatches * max(sum(layers_s[i] for one in own for i in stages[one]) for own in plan.stage_of))


def _missed_rows(scenario: Scenario) -> Unmodelled | None:
    """Rows of embedding tables that a batch looks up again, and that no cache has kept since: the model reads and changes each
    row once."""
    plan, job = scenario.strategy.plan, job_of(scenario)
    samples = job.samples_per_worker / plan.microbatches
    again_bytes = sum(lookup.repeated_bytes(samples) for lookup in lookups_of(job.layers))
    if not again_bytes:
        return None
    again_s = plan.microbatches * job.cluster.device.moved_s(again_bytes)
    note = (
        "rows of tables that a batch looks up several times are read and changed once, and found in caches afterwards; the "
        f"interval includes {format_time_s(again_s)} a step in case that none of them is"
    )
    return Unmodelled(note, again_s)


def _dense_tables(scenario: Scenario) -> Unmodelled | None:
    """Sparse gradients of a user's module, which none but parameter servers have without the rows that are zero."""
    names = [table.name for layer in job_of(scenario).layers for table in layer.row_tables if table.name]
    if not names or scenario.strategy.kind == "parameter_server":
        return None
    note = f"gradients of {', '.join(names)} are sparse, but are counted as dense: summed, stored and applied whole"
    return Unmodelled(note, 0.0)


def _decoding_kernels(scenario: Scenario) -> Unmodelled | None:
    """Decoding on devices before A100, whose kernels slow those of training: they have no engine for JPEG (nvJPEG's
    documentation, "hardware decoder")."""
    input_, kernels = scenario.input, scenario.cluster.device.kernels
    if input_ is None or input_.decode_on == "cores" or kernels is None or kernels.generation not in _WITHOUT_ENGINES:
        return None
    decoding_s = input_.decode_s * scenario.samples_per_worker
    note = (
        f"{scenario.cluster.device.name} has no engine for JPEG: images are decoded by kernels, which slow those of training; "
        f"the interval includes {format_time_s(decoding_s)} a step"
    )
    return Unmodelled(note, decoding_s)


def _unmeasured_recurrences(scenario: Scenario) -> Unmodelled | None:
    """Kernels of recurrences, none of which was measured: they are priced as products and passes, and may take twice that."""
    return _unmeasured(
        scenario, lambda one: isinstance(one, Scan | StepwiseMatmul) or one.name == SELECTIVE_SCAN,
        "no kernel of a recurrence was measured on a GPU: they are priced like products and passes over memory of their sizes",
    )  # fmt: skip


def _unmeasured_attention(scenario: Scenario) -> Unmodelled | None:
    """Kernels of pointwise attention, none of which was measured: they are priced as softmax attention, and may take twice
    that."""
    return _unmeasured(
        scenario, lambda one: one.name == POINTWISE_ATTENTION,
        "no kernel of pointwise attention with biases was measured on a GPU: they are priced like softmax attention",
    )  # fmt: skip


def _unmeasured(scenario: Scenario, is_unmeasured: Callable[[Operator], bool], reason: str) -> Unmodelled | None:
    """The time of operators whose kernels were not measured. reason: words for them and for how they are priced."""
    plan, job = scenario.strategy.plan, job_of(scenario)
    samples = job.samples_per_worker / plan.microbatches

    def of_layer(layer: Layer) -> tuple[float]:
        own = [one for one in layer.operators if is_unmeasured(one)]
        return (sum(job.operators_s(layer, own, samples)) if own else 0.0,)

    (layers_s,) = job.of_layers(of_layer)
    if not layers_s.any():
        return None
    time_s = _of_busiest_rank(scenario, job, layers_s)
    return Unmodelled(f"{reason}; the interval includes twice their time, {format_time_s(time_s)} a step more", time_s)


def _untimed_layers(scenario: Scenario) -> Unmodelled | None:
    """Layers that were not timed on processor cores whose costs of operators are not known either: their times follow from
    peak rates, as if calls of operators took no time."""
    job = job_of(scenario)
    device, plan = job.cluster.device, scenario.strategy.plan
    is_fitted = device.kernels is not None
    if not job.cluster.computes_on_processors or scenario.compute == "paced" or is_fitted or device.efficiency is not None:
        return None
    samples = job.samples_per_worker / plan.microbatches

    def of_layer(layer: Layer) -> tuple[float]:
        if device.measured_layer_s(layer, samples, job.precision) is not None:
            return (0.0,)
        work = forward_work(layer.operators, samples) + backward_work(layer.operators, samples)
        calls = sum(work[name] for name in cpu_core.EVERY_CALL)
        return (_CALL_S * calls + (_BELOW_PEAK - 1) * sum(device.layer_s(layer, samples, job.precision)),)

    (layers_s,) = job.of_layers(of_layer)
    untimed = int(np.count_nonzero(layers_s))
    if not untimed:
        return None
    longer_s = _of_busiest_rank(scenario, job, layers_s)
    note = (
        f"{job.cluster.name or 'the cluster'} has no times of {untimed} of {len(job.layers)} layers and is not calibrated for "
        f"others: they are predicted at peak rates, far too short if they are small; the interval includes "
        f"{format_time_s(longer_s)} a step more; run 'scaleproof calibrate --on local --out FILE' on the machine, and give "
        "cluster=FILE"
    )
    return Unmodelled(note, longer_s)


_PARTS: Final[Sequence[Callable[[Scenario], Unmodelled | None]]] = (
    _repeated_recomputation, _missed_rows, _decoding_kernels, _dense_tables, _unmeasured_recurrences,
    _unmeasured_attention, _untimed_layers,
)  # fmt: skip
