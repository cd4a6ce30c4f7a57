"""The strategies that suit a group of cases: measurable and verifiable, with enough communication to be scored, and not limited
by the cores that emulated hosts share."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.proof.proving.strategies import StrategyFamily
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.launch.job import needed_nodes
from scaleproof.validator.preflight.checks import check

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
_CORES: Final = os.cpu_count() or 1


class Limits(NamedTuple):
    """Limits of cases. most_hosts: servers included. longest_step_s: of predictions."""

    most_hosts: int
    longest_step_s: float


def suitable_families(
    families: Sequence[StrategyFamily], common: Mapping[str, Any], limits: Limits, can_scale: bool
) -> tuple[list[StrategyFamily], tuple[float, float]]:
    """The first families that suit a group together, and the range of slowdown factors of links and compute that suits all.

    families: in the order in which they are tried. common: fields of their scenarios. can_scale: whether links and compute may
    be slowed.
    """
    chosen: list[StrategyFamily] = []
    kinds: Counter[str] = Counter()
    range_of_all = (0.0, math.inf) if can_scale else (1.0, 1.0)
    for family in families:
        if len(chosen) == FAMILIES_A_GROUP:
            break
        if kinds[family.kind] == _MOST_OF_A_KIND or (own := _suits(described(common, family), limits)) is None:
            continue
        narrowed = max(range_of_all[0], own[0]), min(range_of_all[1], own[1])
        if narrowed[0] <= narrowed[1]:
            chosen.append(family)
            range_of_all = narrowed
            kinds[family.kind] += 1
    return chosen, range_of_all


def described(common: Mapping[str, Any], family: StrategyFamily) -> dict[str, Any]:
    """The fields of a family's scenario."""
    return {**common, **family.changes, "training": common["training"] | family.changes.get("training", {})}


def check_measurable(scenario: Scenario) -> None:
    """Raises InputError where `measure --on netlab --verify` refuses the scenario."""
    check(scenario, "netlab", None, verify=True)


def _suits(fields: Mapping[str, Any], limits: Limits) -> tuple[float, float] | None:
    """Range of suitable slowdown factors of links and compute; None if the strategy is not suitable, communicates too little,
    or is limited by this machine's cores even in the longest step."""
    try:
        scenario = Scenario.model_validate(fields)
    except FieldError:
        return None
    if needed_nodes(scenario) > limits.most_hosts:
        return None
    try:
        check_measurable(scenario)
    except InputError:
        return None
    program = compile_step(scenario.strategy, job_of(scenario))
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
