"""Spans computed from starts and ends of tasks."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.engine import simulate
from scaleproof.simulator.predict import predicted_run, timed
from scaleproof.simulator.program import Path, ProgramBuilder
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load


def run(builder: ProgramBuilder) -> Run:
    return predicted_run(simulate(builder.build(), 2), scenario="s", strategy="x", samples=1)


def test_model_parallel_exchanges_precede_work_and_are_exposed() -> None:
    builder = ProgramBuilder()
    rank = builder.rank("rank", multiplicity=8, model_parallel_size=8)
    builder.compute(np.array([rank, rank]), [Phase.FORWARD, Phase.BACKWARD], lambda _: ([2.0, 4.0], [0.5, 1.0]))
    result = run(builder)
    assert result.step_time_s == pytest.approx(7.5)
    assert result.breakdown_s["compute"] == pytest.approx(6.0)
    assert result.communication_s == pytest.approx({"exposed": 1.5, "hidden": 0.0})
    assert result.spans is not None
    spans = sorted(zip(result.spans.start_s.tolist(), result.spans.end_s.tolist(), result.spans.phase.tolist(), strict=True))
    assert [(end - start, Phase(phase)) for start, end, phase in spans] == [
        (pytest.approx(0.5), Phase.SYNCHRONISE), (2, Phase.FORWARD), (1, Phase.SYNCHRONISE), (4, Phase.BACKWARD),
    ]  # fmt: skip


def test_a_wait_is_transfer_time_while_an_awaited_message_moves() -> None:
    """Messages move from 1 to 2 and from 4 to 5; the receiver has waited for both since 0."""
    builder = ProgramBuilder()
    receiver = builder.rank("receiver")
    messages = []
    for name, computes_s in (("early", 1.0), ("late", 4.0)):
        sender = builder.rank(name)
        made = builder.compute(sender, Phase.FORWARD, computes_s)
        messages.append(builder.transfer(sender, receiver, 10.0, Path(0.0, 10.0), Phase.SEND, (made,)))
        builder.compute(sender, Phase.BACKWARD, 5.0 - computes_s)
    builder.compute(receiver, Phase.FORWARD, 1.0, messages)
    # every rank ends each step together with the others, so that the second is like the first
    result = run(builder)
    assert result.spans is not None
    waits = result.spans.where(
        (result.spans.rank == receiver) & (result.spans.phase == Phase.RECEIVE) & (result.spans.stream == Stream.MAIN)
    )
    moved_s = (waits.end_s - waits.start_s).sum()
    waited_s = (waits.start_s - waits.arrival_s).sum()
    assert moved_s == pytest.approx(2.0)
    assert len(waits) == 2
    assert waited_s == pytest.approx(result.step_time_s - 1.0 - 2.0)


def test_waits_for_the_previous_step_have_its_phase() -> None:
    builder = ProgramBuilder()
    rank = builder.rank("rank", multiplicity=2)
    first = builder.wait(rank, Phase.FORWARD, [])
    work = builder.compute(rank, Phase.FORWARD, 1.0)
    done = builder.compute(rank, Phase.BACKWARD, 1.0)
    average = builder.collective([rank], 30.0, Path(0.0, 10.0), Phase.SYNCHRONISE, [done])
    builder.carry(work, [average])
    result = run(builder)
    # moving takes 3 seconds after each step's 2, and the next waits for it
    assert first == 0
    assert result.step_time_s == pytest.approx(5.0)
    assert result.communication_s == pytest.approx({"exposed": 3.0, "hidden": 0.0})
    assert result.phase_s["synchronise"] == pytest.approx(3.0)


def gathering(microbatches: int) -> tuple[str, ...]:
    """Eight ranks that gather the layers of a model before every pass over them."""
    strategy = f"strategy={{kind: hybrid, workers: 8, microbatches: {microbatches}}}"
    return strategy, f"batch={8 * microbatches}", "training.zero=3"


def test_too_many_gathered_layers_are_rejected() -> None:
    with pytest.raises(FieldError, match="too many to simulate; give at most"):
        timed(load("llama-2-7b-fsdp-a100", gathering(100_000)))
