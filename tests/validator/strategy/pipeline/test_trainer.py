"""Every pipeline schedule runs passes in the simulator's order, and trains like one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.pipeline.schedules import Pass, order
from scaleproof.simulator.strategy.plan_costs import pass_times, stage_layers, with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.measure import MeasureOptions, measure
from tests.validator import faults_pipeline
from tests.validator.conftest import MLP, TINY_GPT, make
from tests.validator.verdicts import at_night, in_bulk, main_of

MODELS: dict[str, dict[str, Any]] = {"gpt": {**TINY_GPT, "layers": 6}, "mlp": {**MLP, "layers": 6}}


class Case(NamedTuple):
    """A schedule with numbers for it."""

    schedule: str
    stages: int
    microbatches: int
    chunks: int = 1
    overlap_sends: bool = True
    model: str = "gpt"
    optimizer: str = "sgd"

    def __str__(self) -> str:
        sends = "" if self.overlap_sends else "-in-turn"
        return f"{self.schedule}-{self.stages}x{self.chunks}-{self.microbatches}{sends}-{self.model}"

    def scenario(self, compute: str = "real", **fields: Any) -> Scenario:
        strategy = {
            "kind": "pipeline",
            "schedule": self.schedule,
            "stages": self.stages,
            "chunks": self.chunks,
            "microbatches": self.microbatches,
            "overlap_sends": self.overlap_sends,
        }
        training = {"precision": "fp64", "optimizer": self.optimizer}
        one = make(strategy | fields, MODELS[self.model], batch=2 * self.microbatches, **training)
        return one.model_copy(update={"compute": compute})


CASES = [
    Case("gpipe", 2, 5, overlap_sends=False, optimizer="adam"),
    Case("gpipe", 3, 2, overlap_sends=False, model="mlp"),
    Case("1f1b", 3, 5, overlap_sends=False),
    Case("1f1b", 2, 4, model="mlp", optimizer="adam"),
    Case("1f1b", 3, 2),
    Case("interleaved_1f1b", 2, 6, 2, optimizer="adam"),
    Case("interleaved_1f1b", 2, 4, 3, model="mlp"),
    Case("looped_bfs", 2, 5, 3, overlap_sends=False),
    Case("looped_bfs", 3, 2, 2, overlap_sends=False, model="mlp"),
    Case("zb_h1", 3, 5),
    Case("zb_h2", 3, 5, model="mlp"),
    Case("zb_1p", 3, 4, optimizer="adam"),
    Case("zb_2p", 2, 5),
    Case("interleaved_zero_bubble", 2, 6, 3, optimizer="adam"),
    Case("interleaved_zero_bubble", 3, 3, 2, model="mlp"),
    Case("zb_v", 3, 4, 2),
    Case("zb_v", 2, 5, 2, model="mlp", optimizer="adam"),
    Case("dualpipe_v", 3, 7, 2),
    Case("dualpipe_v", 2, 4, 2, model="mlp", optimizer="adam"),
]
# what torch runs with one stage on a rank, with several, and in orders that are not its own
SOME = [
    Case("1f1b", 2, 4, overlap_sends=False),
    Case("looped_bfs", 2, 3, 2, overlap_sends=False),
    Case("zb_h1", 2, 3),
    Case("dualpipe_v", 2, 4, 2),
]
OF_EACH_SCHEDULE = list({case.schedule: case for case in CASES}.values())
ALL = [*OF_EACH_SCHEDULE, *at_night(*(case for case in CASES if case not in OF_EACH_SCHEDULE))]


def passes(run: Run, rank: int, step: int) -> list[tuple[bool, int, int]]:
    """Whether forward, stage and microbatch of what a rank passed, in the order in which it began."""
    spans = main_of(run, rank)
    done = spans.where((spans.step == step) & np.isin(spans.phase, (Phase.FORWARD, Phase.BACKWARD)))
    turn = np.argsort(done.start_s)
    columns = (done.phase == Phase.FORWARD, done.stage, done.microbatch)
    return list(zip(*(column[turn].tolist() for column in columns), strict=True))


def expected(case: Case, rank: int) -> list[tuple[bool, int, int]]:
    """What the simulator says to that."""
    one = case.scenario()
    plan = one.strategy.plan
    found = order(
        plan.schedule, plan.stages, plan.microbatches, plan.chunks, pass_times(plan, with_collectives(plan, job_of(one)))
    )
    rows = zip(*(column[rank].tolist() for column in found[:3]), strict=True)
    return [(kind == Pass.FORWARD, plan.stage_of[rank][chunk], microbatch) for kind, chunk, microbatch in rows if kind >= 0]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_schedules_train_like_one_process_in_the_simulators_order(case: Case) -> None:
    """Passes run in its order, spans of a rank do not overlap, and messages cross between ranks alone."""
    run = measure(case.scenario(), watch=MeasureOptions(verify=True))

    assert run.verified is not None
    assert run.verified.deviation < 1e-9
    for rank in range(case.stages):
        assert all(passes(run, rank, step) == expected(case, rank) for step in (1, 5))
        own = main_of(run, rank)
        assert (own.arrival_s[1:] >= own.end_s[:-1] - 1e-9).all()
        assert (own.arrival_s <= own.start_s).all()
        assert (own.start_s <= own.end_s).all()
    check_messages(case, run)


def check_messages(case: Case, run: Run) -> None:
    """There and back between stages that are neighbours on different ranks; where one rank has both it hands over."""
    one = case.scenario()
    plan, last = one.strategy.plan, case.stages * case.chunks - 1
    home = {stage: rank for rank, own in enumerate(plan.stage_of) for stage in own}
    size_bytes = 2 * float(one.model.build_layers()[0].output_elements) * 8
    assert run.spans is not None

    for phase, forward, backward in ((Phase.SEND, 1, -1), (Phase.RECEIVE, -1, 1)):
        crossing = sorted(
            (home[stage], stage, microbatch)
            for stage in range(last + 1)
            for step in (forward, backward)
            for microbatch in range(case.microbatches)
            if 0 <= stage + step <= last and home[stage + step] != home[stage]
        )
        spans = run.spans.where((run.spans.phase == phase) & (run.spans.step == 3) & (run.spans.size_bytes > 0))
        for stream in Stream:
            own = spans.where(spans.stream == stream)
            seen = zip(own.rank.tolist(), own.stage.tolist(), own.microbatch.tolist(), strict=True)
            assert sorted(seen) == crossing, "exposed and overlapped"
        assert set(spans.size_bytes.tolist()) == {size_bytes}


@pytest.mark.parametrize("case", [SOME[1], *in_bulk(SOME[0], *SOME[2:]), *at_night(*OF_EACH_SCHEDULE)], ids=str)
def test_emulated_layers_pass_verification(case: Case) -> None:
    plain = case._replace(optimizer="momentum")

    verified = measure(plain.scenario("paced"), watch=MeasureOptions(verify=True)).verified

    assert verified is not None
    assert verified.deviation < 1e-9


@pytest.mark.full
@pytest.mark.parametrize(
    ("shared", "compute"),
    [
        ({"workers": 1, "tensor": 2}, "paced"),
        *in_bulk(({"workers": 2}, "real")),
        *at_night(({"workers": 2}, "paced"), ({"workers": 1, "tensor": 2}, "real")),
    ],
)
def test_hybrids_support_all_pipeline_schedules(shared: dict[str, int], compute: str) -> None:
    verified = measure(
        Case("zb_v", 2, 4, 2).scenario(compute, kind="hybrid", overlap=False, **shared), watch=MeasureOptions(verify=True)
    ).verified

    assert verified is not None
    assert verified.deviation < 1e-9


@pytest.mark.parametrize("case", [SOME[0], *in_bulk(SOME[1]), *at_night(*SOME[2:])], ids=str)
@pytest.mark.parametrize("fault", [faults_pipeline.train_with_a_stale_stage, faults_pipeline.train_without_a_microbatch])
def test_verification_detects_untrained_layers(fault: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    verified = measure(case.scenario(), watch=MeasureOptions(verify=True)).verified

    assert verified is not None
    assert verified.deviation > 1e-3


@pytest.mark.parametrize("schedule", ["zb_v", *in_bulk("zb_h1", "interleaved_zero_bubble")])
def test_verification_detects_missing_weight_gradients(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_pipeline.train_without_gradients_of_weights)
    case = Case(schedule, 2, 4, 1 if schedule == "zb_h1" else 2)

    verified = measure(case.scenario(), watch=MeasureOptions(verify=True)).verified

    assert verified is not None
    assert verified.deviation > 1e-3


def test_verification_detects_a_repeated_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_pipeline.train_on_a_microbatch_twice)

    verified = measure(Case("gpipe", 3, 4, overlap_sends=False).scenario(), watch=MeasureOptions(verify=True)).verified

    assert verified is not None
    assert verified.deviation > 1e-3


ENDS = {"account_for_embedding": True, "account_for_loss": True}


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        (Case("zb_v", 2, 4, 2), {"balance": (1, 2, 1, 2)}),
        # in the second, the embedding and the head are stages of their own
        *in_bulk((Case("zb_v", 2, 4, 2), {"balance": "time"}), (Case("1f1b", 6, 6), ENDS)),
        *at_night(
            (Case("zb_v", 2, 4, 2), {"balance": "layers"}),
            (Case("zb_v", 2, 4, 2), {"balance": "memory"}),
            (Case("interleaved_1f1b", 3, 6, 2), ENDS),
            (Case("gpipe", 5, 4, overlap_sends=False), {"account_for_embedding": True}),
        ),
    ],
)
def test_ranks_have_the_simulators_layers(case: Case, fields: dict[str, Any], tmp_path: Path) -> None:
    one = case.scenario(**fields)

    run = measure(one, watch=MeasureOptions(parameters_folder=tmp_path, verify=True))

    assert run.verified is not None
    assert run.verified.deviation < 1e-9
    ranges, plan = stage_layers(one.strategy, job_of(one)), one.strategy.plan  # type: ignore[attr-defined]
    for rank, stages in enumerate(plan.stage_of):
        trained = {int(key.partition(".")[0]) for key in torch.load(tmp_path / f"rank{rank}.pt")}
        assert trained == {layer for stage in stages for layer in ranges[stage]}


@pytest.mark.parametrize(("schedule", "chunks"), [("zb_v", 2), ("zb_h1", 1), ("interleaved_1f1b", 2)])
def test_overlap_sends_false_is_rejected_if_torch_receives_ahead(schedule: str, chunks: int) -> None:
    with pytest.raises(InputError, match=rf"overlap_sends: torch receives ahead of passes in {schedule}; give true"):
        measure(Case(schedule, 2, 4, chunks, overlap_sends=False).scenario())


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("looped_bfs", 2)])
def test_overlap_sends_true_is_rejected_if_torch_receives_in_turn(schedule: str, chunks: int) -> None:
    with pytest.raises(InputError, match=rf"in {schedule} torch receives only when a rank reaches a pass; set it to false"):
        measure(Case(schedule, 2, 4, chunks).scenario())


def test_1f1b_with_too_few_microbatches_is_rejected() -> None:
    with pytest.raises(InputError, match=r"microbatches: .* as many microbatches as stages, got 2 for 3; give 3, or gpipe"):
        measure(Case("1f1b", 3, 2, overlap_sends=False).scenario())
