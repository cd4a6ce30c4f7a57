"""Random models and the strategies that suit them: trainable, with enough communication to be scored, and not limited by the
cores that emulated hosts share."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.job import needed_nodes
from scaleproof.validator.launch.preflight.checks import check_trainable

Compute = Literal["paced", "real"]

# Smallest share of exposed communication in the step of a case with emulated compute, since that is what is scored.
LEAST_EXPOSED: Final = 0.4
FAMILIES_A_GROUP: Final = 4
ELEMENT_BYTES: Final = 4
_SHORTEST_STEP_S: Final = 0.3
# Core time of a pass or a message of a run with emulated compute in torch, Python and the kernel (netlab-1f1b keeps a third of
# two cores of a virtual machine busy with 290 a second), and of moving a byte of a rank's parameters through memory, which
# optimizers and buckets do about eight times a step at 4 GB/s. If that exceeds a share of the cores' time, ranks are late,
# especially while a virtual machine's host uses the cores: a sleeping process then wakes up milliseconds late.
_TASK_S: Final = 1.2e-3
_PARAMETER_BYTE_S: Final = 8 / 4e9
# A message keeps 0.16 cores busy at 24 MB/s, both of its ends together (`cores_busy` of such a lab).
_MOVED_BYTE_S: Final = 0.16 / 24e6
_BUSY: Final = 0.12
# A lab's link passes 18 kB at once after it was idle, which no description of a link includes: messages must be much larger.
_LEAST_MESSAGE_BYTES: Final = 250e3
# Most families of one kind in a group, so that its strategies differ.
_MOST_OF_A_KIND: Final = 2
_KINDS: Final = {"pipeline": "staged", "hybrid": "staged", "parameter_server": "served"}
_CORES: Final = os.cpu_count() or 1


class Limits(NamedTuple):
    """Limits of cases. most_hosts: servers included. longest_step_s: of predictions."""

    most_hosts: int
    longest_step_s: float


def microbatches_on(hosts: int) -> int:
    """Number of microbatches of a pipeline over a number of hosts."""
    return 4 if hosts < 4 else hosts


def families_on(hosts: int, chunks: int) -> dict[str, dict[str, Any]]:
    """Strategies on `hosts` hosts, by family."""
    microbatches = microbatches_on(hosts)
    strategies: dict[str, dict[str, Any]] = {
        "ring": {"kind": "data_parallel", "workers": hosts, "algorithm": "ring", "overlap": False},
        "ddp": {"kind": "data_parallel", "workers": hosts, "bucket": "2 MiB"},
        "ddp after": {"kind": "data_parallel", "workers": hosts, "bucket": "4 MiB", "overlap": False},
        "gather": {"kind": "gather_average", "workers": hosts},
        "local sgd": {"kind": "local_sgd", "workers": hosts, "period": 2},
        "1 server": {"kind": "parameter_server", "workers": hosts, "servers": 1},
        "2 servers": {"kind": "parameter_server", "workers": hosts, "servers": 2},
        "gpipe": {"kind": "pipeline", "stages": hosts, "microbatches": microbatches, "schedule": "gpipe"},
        "1f1b": {"kind": "pipeline", "stages": hosts, "microbatches": microbatches, "schedule": "1f1b"},
        "interleaved": {
            "kind": "pipeline", "stages": hosts, "microbatches": microbatches, "chunks": chunks, "schedule": "interleaved_1f1b",
            "overlap_sends": True,
        },
    }  # fmt: skip
    if hosts >= 4 and hosts % 2 == 0:
        strategies["hybrid"] = {"kind": "hybrid", "workers": hosts // 2, "stages": 2, "microbatches": 4}
    return strategies


def suitable_families(
    random: Random, common: Mapping[str, Any], hosts: int, limits: Limits, can_scale: bool
) -> tuple[dict[str, Any], tuple[float, float]]:
    """Strategies of a group by family, and the range of slowdown factors of links and compute that suits all of them.

    common: what they have in common. hosts: number that train. can_scale: whether links and compute may be slowed.
    """
    families = sorted(families_on(hosts, 2).items())
    chosen: dict[str, Any] = {}
    kinds: Counter[str] = Counter()
    range_of_all = (0.0, math.inf) if can_scale else (1.0, 1.0)
    for family, strategy in random.sample(families, len(families)):
        kind = kind_of(strategy)
        if len(chosen) == FAMILIES_A_GROUP or kinds[kind] == _MOST_OF_A_KIND:
            continue
        if (own := _suits(dict(common) | {"strategy": strategy}, limits)) is None:
            continue
        narrowed = max(range_of_all[0], own[0]), min(range_of_all[1], own[1])
        if narrowed[0] <= narrowed[1]:
            chosen[family], range_of_all = strategy, narrowed
            kinds[kind] += 1
    return chosen, range_of_all


def kind_of(strategy: Mapping[str, Any]) -> str:
    """The kind of a family's strategy: summing, staged or served."""
    return _KINDS.get(strategy["kind"], "summing")


def _suits(described: Mapping[str, Any], limits: Limits) -> tuple[float, float] | None:
    """Range of suitable slowdown factors of links and compute; None if the strategy is not suitable, communicates too little,
    or is limited by this machine's cores even in the longest step."""
    try:
        scenario = Scenario.model_validate(described)
        check_trainable(scenario)
    except (FieldError, InputError):
        return None
    if needed_nodes(scenario) > limits.most_hosts:
        return None
    program = scenario.strategy.compile(scenario.job())
    if (program.amount[program.kind == Kind.TRANSFER] < _LEAST_MESSAGE_BYTES).any():
        return None
    is_paced = scenario.compute == "paced"
    least_s = max(_SHORTEST_STEP_S, _handled_s(scenario, program) / (_BUSY * _CORES) if is_paced else 0.0)
    if least_s > limits.longest_step_s:
        return None
    predicted = timed(scenario)
    if not communicates(scenario, predicted):
        return None
    return least_s / predicted.step_time_s, limits.longest_step_s / predicted.step_time_s


def communicates(scenario: Scenario, predicted: Run) -> bool:
    """Whether the scenario communicates enough to be scored; always true for real compute."""
    return scenario.compute == "real" or predicted.breakdown_s["exposed_communication"] >= LEAST_EXPOSED * predicted.step_time_s


def _handled_s(scenario: Scenario, program: Program) -> float:
    """Core seconds of a step with emulated compute: all passes, both ends of all messages, all bytes."""
    kinds = [program.kind == Kind.TRANSFER, program.kind == Kind.COLLECTIVE]
    ends = np.select(kinds, [2, program.members.counts], 1)
    moved_bytes = np.select(kinds, [program.amount, program.amount * program.members.counts], 0.0)
    task_s = ends * _TASK_S + moved_bytes * _MOVED_BYTE_S
    handled_s = float((task_s * program.ranks.multiplicity[program.rank]).sum()) / scenario.strategy.program_steps
    parameters = sum(layer.parameters for layer in scenario.model.build_layers())
    return handled_s + 4 * parameters * scenario.strategy.workers * _PARAMETER_BYTE_S


def drawn_model(random: Random, hosts: int) -> dict[str, Any]:
    """A random small model whose layers suit a number of hosts."""
    if random.random() < 0.2:
        return {"kind": "mlp", "inputs": 128, "hidden": random.choice((128, 192, 256)), "layers": 2 * hosts, "outputs": 64}
    return {
        "kind": "gpt",
        "layers": max(2 * hosts, random.choice((4, 6, 8))),
        "hidden": random.choice((64, 96, 128)),
        "heads": 4,
        "vocabulary": random.choice((128, 256)),
        "sequence": random.choice((128, 256)),
    }
