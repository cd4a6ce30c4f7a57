"""Samples of a step of captured scripts, from the inputs of their modules or as declared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.reports.descriptions.runs import speed
from scaleproof.simulator.captured.reading import script_of_capture
from scaleproof.simulator.captured.record import Capture, EventKind, ModelInput, Signature, TrainingPass
from scaleproof.simulator.captured.script import CapturedScript
from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from tests.simulator.captured.records import Step, capture, data_parallel, rank_class

BATCH, TOKENS, LABELS = (4, 2048), (4 * 2048, 50257), (4 * 2048,)
BAG = ModelInput("EmbeddingBag", ((131072,), (65536,)), 2)


def called(*inputs: ModelInput) -> Capture:
    """A capture of 16 workers whose outermost modules had these inputs."""
    made = data_parallel()
    return replace(made, classes=(replace(made.classes[0], inputs=inputs),))


@pytest.mark.parametrize(
    ("inputs", "samples", "disagrees"),
    [
        ([ModelInput("GPT", (BATCH, BATCH), 1)], 4, False),
        # calls of microbatches add up
        ([ModelInput("GPT", (BATCH,), 8)], 32, False),
        # a loss of tokens says nothing about samples
        ([ModelInput("GPT", (BATCH,), 1), ModelInput("CrossEntropyLoss", (TOKENS, LABELS), 1)], 4, False),
        # tables that are divided among ranks look up the rows of all ranks' samples
        ([BAG, ModelInput("Linear", ((4096, 13),), 1), ModelInput("Linear", ((4096, 512),), 1)], 4096, True),
        ([BAG, ModelInput("DistributedDataParallel", ((4096, 13),), 1)], 4096, True),
        # where there is nothing else, groups of indices are samples
        ([BAG], 65536, False),
        ([ModelInput("Model", ((131072,), (4096, 13), (4096, 512)), 1)], 4096, True),
        # what all samples share, such as a scale or a mask
        ([ModelInput("Model", (BATCH, (1, 1, 2048, 2048), ()), 1)], 4, False),
        # real and generated images at once
        ([ModelInput("FSDPGan", ((64, 3),), 1), ModelInput("FSDPGan", ((128, 3),), 1), ModelInput("FSDPGan", ((64, 9),), 1)],
         64, True),
    ],
)  # fmt: skip
def test_samples_are_what_most_inputs_of_the_model_agree_on_and_others_are_named(
    inputs: list[ModelInput], samples: int, disagrees: bool
) -> None:
    script = script_of_capture(called(*inputs), "train")
    assert script.samples == samples
    assert script.samples_rule.startswith("the first dimension of ")
    assert bool(script.samples_conflict) == disagrees


def test_a_prediction_says_that_inputs_disagree_until_the_number_is_given(tmp_path: Path) -> None:
    called(BAG, ModelInput("Linear", ((4096, 13),), 1), ModelInput("Linear", ((4096, 4),), 1)).write(tmp_path / "train.zip")
    read = predict(load(tmp_path / "train.zip"), interval=False)
    given = predict(load(tmp_path / "train.zip", {"strategy.samples": 16 * 1024}), interval=False)
    assert (read.samples, given.samples) == (16 * 4096, 16 * 1024)
    assert given.step_time_s == read.step_time_s
    assert any("inputs disagree" in warning and "EmbeddingBag" in warning for warning in read.warnings)
    assert not any("inputs disagree" in warning for warning in given.warnings)
    # with twice the workers each of them takes as many
    assert predict(load(tmp_path / "train.zip", {"strategy.samples": 16 * 1024, "gpus": 32}), interval=False).samples == 2**15


def test_a_declared_number_is_that_of_all_ranks(tmp_path: Path) -> None:
    declared = replace(called(BAG), samples=65536)
    script = script_of_capture(declared, "train")
    assert (script.samples, script.samples_rule, script.samples_conflict) == (4096, "as given", "")
    declared.write(tmp_path / "train.zip")
    assert predict(load(tmp_path / "train.zip"), interval=False).samples == 65536
    # also where no module shows a batch
    assert script_of_capture(replace(called(), samples=32), "train").samples == 2


def test_a_step_is_predicted_without_samples_where_nothing_shows_them(tmp_path: Path) -> None:
    square = ((1024, 1024), "float32")
    step = Step().add(EventKind.STEP).operator("aten::mm", [square, square], square, TrainingPass.FORWARD)
    made = capture(rank_class(step, range(8), [], batch=()))
    made.write(tmp_path / "train.zip")
    run = predict(load(tmp_path / "train.zip"), interval=False)
    assert (run.samples_known, run.tokens) == (False, None)
    assert any("samples of a step are not known" in warning for warning in run.warnings)
    assert "samples/s" not in repr(run) + speed(run)
    assert "per_million_samples" not in (run.energy_J or {})
    replace(made, tokens=8 * 4096).write(tmp_path / "tokens.zip")
    run = predict(load(tmp_path / "tokens.zip"), interval=False)
    assert (run.samples_known, run.tokens) == (False, 8 * 4096)
    assert predict(load(tmp_path / "train.zip", {"strategy.samples": 64}), interval=False).samples_known


@pytest.mark.parametrize(
    ("indices", "found"), [((4, 512), (8, 512, True)), ((2048,), (1, 4096, False))], ids=["samples of tokens", "packed tokens"]
)
def test_integers_that_are_looked_up_are_tokens(indices: tuple[int, ...], found: tuple[int, int, bool]) -> None:
    step = Step().add(EventKind.STEP)
    for _ in range(2):
        table, rows = ((32000, 256), "float32"), ((*indices, 256), "float32")
        step.operator("aten::embedding", [table, (indices, "int64")], rows, TrainingPass.FORWARD)
    script = script_of_capture(capture(rank_class(step, range(8), [], batch=())), "train")
    assert (script.samples, script.tokens, script.samples_known) == found


def of_sequences(shape: tuple[int, int], *, attends: bool = False, loads: bool = False) -> CapturedScript:
    """A model of 4 samples of 2,048 tokens, whose input has a shape. attends: in one kernel; loads: samples first."""
    table, rows = ((32000, 256), "float32"), ((*shape, 256), "float32")
    step = Step().add(EventKind.STEP)
    if loads:
        tokens = (((4, 2048), "int64", True),)
        step.add(EventKind.COPY, name="host to device", signature=Signature(tokens, tokens, {}), bytes_read=0, bytes_written=0)
    step.operator("aten::embedding", [table, (shape, "int64")], rows, TrainingPass.FORWARD)
    if attends:
        heads = ((4, 8, 2048, 32), "bfloat16")
        step.operator("aten::_scaled_dot_product_flash_attention", [heads] * 3, heads, TrainingPass.FORWARD)
    return script_of_capture(capture(rank_class(step, range(8), [], batch=shape)), "train")


@pytest.mark.parametrize(
    ("shape", "evidence", "rule"),
    [
        ((4, 2048), {"attends": True}, "the first dimension of Model's input 4 × 2048"),
        ((2048, 4), {"attends": True},
         "the second dimension of Model's input 2048 × 4, as attention has 4 samples of 2,048 positions"),
        ((2048, 4), {"loads": True},
         "the second dimension of Model's input 2048 × 4, as the script loads 4 × 2048 to the device"),
    ],
)  # fmt: skip
def test_samples_may_come_after_the_sequence(shape: tuple[int, int], evidence: dict[str, bool], rule: str) -> None:
    script = of_sequences(shape, **evidence)
    assert (script.samples, script.tokens, script.samples_conflict) == (4, 2048, "")
    assert script.samples_rule == rule


def test_more_samples_than_tokens_are_said_where_nothing_shows_the_order() -> None:
    assert of_sequences((4, 2048)).samples_conflict == ""
    doubtful = of_sequences((2048, 4))
    assert (doubtful.samples, doubtful.tokens) == (2048, 4)
    assert doubtful.samples_conflict == "2048 × 4 was taken as samples × sequence, though it has more samples than positions"


def test_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no multiple of the 16 workers"):
        script_of_capture(replace(called(BAG), samples=100), "train")
    called(BAG).write(tmp_path / "train.zip")
    with pytest.raises(ScenarioError, match=r"strategy\.samples: 100 samples are no multiple"):
        load(tmp_path / "train.zip", {"strategy.samples": 100})
    with pytest.raises(ScenarioError, match=r"correct a number .* by strategy\.samples"):
        load(tmp_path / "train.zip", {"batch.total": 100 * 16})
