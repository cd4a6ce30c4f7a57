"""When ZeRO's stages 2 and 3 scatter gradients, and how long pipelines keep the parameters that stage 3 gathers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate import Space, every
from scaleproof.simulator.common.communication import Collective, Dimension, number_of
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.analysis.planner.estimate.predicted import check_against_predictions
from tests.simulator.programs import FREES_ENDS, compiled, ends_bytes, freeing_ends, hybrid, moved_bytes, ring_bytes

Make = Callable[..., Scenario]
LLAMA = "model={kind: llama, layers: 8, hidden: 512, heads: 8, vocabulary: 8192, sequence: 256}"
ON = (LLAMA, "cluster=selene-a100", "batch=64", "training.precision=bf16", "training.optimizer=adam")


@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize(
    ("zero", "scatter", "ways"),
    [
        # a gather after the step, or before both passes of each microbatch; a scatter for each microbatch, or one
        (2, "microbatch", lambda m: 1 + m),
        (2, "step", lambda m: 2),
        (3, "microbatch", lambda m: 3 * m),
        (3, "step", lambda m: 2 * m + 1),
    ],
)
def test_gradients_are_scattered_once_a_step(
    small: Make, microbatches: int, zero: int, scatter: str, ways: Callable[[int], int]
) -> None:
    scenario = small(
        hybrid(workers=4, microbatches=microbatches, scatter=scatter),
        "batch={per_worker: 12}",
        f"training={{zero: {zero}}}",
        *freeing_ends(zero),
    )
    size_bytes = 4 * scenario.model.parameters()
    assert moved_bytes(compiled(scenario)) == pytest.approx(ways(microbatches) * ring_bytes(4, size_bytes))


@pytest.mark.parametrize("kind", ["data_parallel", "hybrid"])
@pytest.mark.parametrize("zero", [2, 3])
def test_unsharded_gradients_are_kept_until_the_scatter(small: Make, zero: int, kind: str) -> None:
    def gradients_bytes(scatter: str, microbatches: int) -> float:
        strategy = f"strategy={{kind: {kind}, workers: 4, microbatches: {microbatches}, scatter: {scatter}}}"
        scenario = small(*ON, strategy, f"training.zero={zero}", "training.offload=[]", "framework=ideal")
        return memory(scenario).worst.holders_bytes["gradients"]

    whole_bytes = 2 * small(*ON).model.parameters()
    assert gradients_bytes("step", 4) == pytest.approx(whole_bytes)
    assert gradients_bytes("microbatch", 4) == pytest.approx(whole_bytes / 4)
    # of one microbatch they are scattered as they are made
    assert gradients_bytes("step", 1) == pytest.approx(gradients_bytes("microbatch", 1))


@pytest.mark.parametrize(
    ("stages", "reshard", "gathers"),
    [
        # torch.distributed.pipelining keeps what FSDP gathers until the last backward pass, if the forward pass leaves it there
        (1, "true", 2 * 8), (1, "false", 8), (2, "true", 2 * 8), (2, "false", 1), (4, "false", 1),
    ],
)  # fmt: skip
def test_pipelines_keep_gathered_parameters(small: Make, stages: int, reshard: str, gathers: int) -> None:
    """Every gather of parameters and every microbatch's gradients are a round of the ring."""
    fields = {"workers": 4, "stages": stages, "microbatches": 8, "reshard": reshard}
    freeing, keeping = (
        compiled(small(hybrid(**fields), "batch=96", "training={zero: 3}", *more)) for more in ((FREES_ENDS,), ())
    )
    none = compiled(small(hybrid(**fields | {"reshard": "true"}), "batch=96"))
    size_bytes = 4 * small().model.parameters()
    shared = moved_bytes(freeing) - (moved_bytes(none) - 2 * ring_bytes(4, size_bytes))
    assert shared == pytest.approx((gathers + 8) * ring_bytes(4, size_bytes))
    # the forward pass leaves parameters of FSDP's root, embedding and head, in any case
    ends_gathers = min(gathers, 8 if stages == 1 else 1)
    less_bytes = (gathers - ends_gathers) * ring_bytes(4, ends_bytes(small()))
    assert moved_bytes(freeing) - moved_bytes(keeping) == pytest.approx(less_bytes)


def waiting(is_waiting: bool) -> str:
    return f"framework={{base: ideal, waits_for_scatters: {str(is_waiting).lower()}}}"


def test_ranks_that_wait_for_scatters_hide_none_of_them(small: Make) -> None:
    """On processors fully_shard returns from a backward pass once its gradients have been scattered."""
    hidden_s = {}
    for is_waiting in (False, True):
        run = timed(small(*ON, "batch=1024", hybrid(workers=8, microbatches=2), "training.zero=3", waiting(is_waiting)))
        (scatters,) = (one for one in run.communication if one.collective == "reduce-scatter")
        hidden_s[is_waiting] = scatters.time_s - scatters.exposed_s
    assert hidden_s[True] == pytest.approx(0.0, abs=1e-9)
    assert hidden_s[False] > 1e-3


def test_gradients_of_a_stage_are_scattered_before_it_sends_those_of_its_input(small: Make) -> None:
    """One microbatch through two stages of one layer each: all collectives and messages follow one another."""
    model = "model={kind: mlp, layers: 2, inputs: 512, hidden: 512, outputs: 512}"
    fields = hybrid(workers=8, stages=2, prefetch=0)
    waits_s, hides_s = (
        timed(small(*ON, model, "batch=8", fields, "training.zero=3", waiting(is_waiting))).step_time_s
        for is_waiting in (True, False)
    )
    program = compiled(small(*ON, model, "batch=8", fields, "training.zero=3", waiting(True)))
    scatters = (program.kind == Kind.COLLECTIVE) & (
        program.communication == number_of(Dimension.FSDP, Collective.REDUCE_SCATTER)
    )
    scatter_s = (program.latency_s + program.amount / program.max_rate)[scatters & (program.stage == 1)]
    # the first stage waits for that of the second
    assert waits_s == pytest.approx(hides_s + float(scatter_s.sum()), rel=0.01)


def test_copies_of_whole_layers_precede_scatters_and_follow_gathers(small: Make) -> None:
    """Each of a step's gathers and scatters takes longer by reading and writing its buffer as often as it is copied."""
    fields = (*ON, hybrid(workers=8), "training.zero=3")
    without, copied = (
        compiled(small(*fields, f"framework={{base: ideal, shard_copies: {{gather: {gather}, scatter: {scatter}}}}}"))
        for gather, scatter in ((0, 0), (1, 3))
    )
    more_s = (copied.latency_s - without.latency_s)[copied.kind == Kind.COLLECTIVE].sum()
    scenario = small(*fields)
    layer_bytes = 2 * scenario.model.parameters()
    assert more_s == pytest.approx(scenario.cluster.device.moved_s(2 * (2 * 1 + 3) * layer_bytes))


@pytest.mark.parametrize("batch", [64, 16])
def test_estimates_of_kept_parameters_agree_with_replay(small: Make, batch: int) -> None:
    base = small(*ON, f"batch={batch}", hybrid(workers=4, reshard="false", overlap="true"), "training.zero=3")
    schedules = ("1f1b", "gpipe", "interleaved_1f1b", "zb_h1")
    space = Space(base, (8, 16), tensor=(1, 2), stages=(2, 4), chunks=(1, 2), samples=(1, 2), zero=(3,), schedules=schedules)
    found = every(space)
    rows = np.random.default_rng(2).choice(len(found), min(40, len(found)), replace=False)
    check_against_predictions(found, rows)


@pytest.mark.parametrize("zero", [0, 1])
def test_scatter_once_per_step_needs_zero_2(small: Make, zero: int) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(hybrid(workers=4, scatter="step"), f"training={{zero: {zero}}}")
    assert "strategy.scatter: gradients are not reduce-scattered; set training.zero to 2 or 3" in str(caught.value)
