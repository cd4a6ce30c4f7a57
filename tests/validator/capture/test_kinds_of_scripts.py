"""Scripts that shard, divide, load and save in other ways than the examples are captured, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from scaleproof.simulator.captured.reading import allocations_of, script_of_capture
from scaleproof.simulator.captured.record import EQUAL_RANKS, Capture, EventKind, RecordedRanks, TrainingPass
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.memory.captured import LiveMemory
from tests.validator.capture.test_capture import EXAMPLES, SIZES, captured

SCRIPTS: Final = Path(__file__).parent / "scripts"
WIDTH: Final = 64

pytestmark = pytest.mark.full


def collectives(one: RecordedRanks) -> list[str]:
    """Names of the collectives of a step."""
    return [one.text("name", row) for row in one.rows(EventKind.COLLECTIVE).tolist()]


def flops(one: RecordedRanks) -> float:
    """FLOPs of a step."""
    return float(one.columns["flops"][one.rows(EventKind.OPERATOR)].sum())


def test_flat_parameters_are_gathered_for_both_passes_and_their_gradients_scattered() -> None:
    (one,) = captured(SCRIPTS / "fsdp1.py", ranks=4).classes
    names = collectives(one)
    # two blocks, the last of which stays gathered between the passes
    assert (names.count("all_gather"), names.count("reduce_scatter")) == (4, 2)
    assert one.parameters == 2 * (8 * WIDTH**2 + 5 * WIDTH)
    modules = LiveMemory.from_allocations(*allocations_of(one)).peak.modules_bytes
    assert {"0", "1"} <= {module.partition(".")[0] for module in modules}


def test_ranks_that_share_a_sequence_exchange_keys_and_values() -> None:
    capture = captured(SCRIPTS / "context_parallel.py", ranks=4)
    assert sum(map(len, capture.classes)) == 4
    for one in capture.classes:
        assert [name for name in collectives(one) if name != "all_reduce"]
        attention = [one.text("name", row) for row in one.rows(EventKind.OPERATOR).tolist()]
        forward = [name for name in attention if "flash_attention" in name and not name.endswith("backward")]
        # each rank has a quarter of the queries, and sees the keys of all four in turn
        assert len(forward) == 4


@pytest.mark.parametrize(
    "schedule", ["ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"]
)
def test_stages_that_take_turns_on_a_rank_send_what_others_receive(schedule: str) -> None:
    capture = captured(SCRIPTS / "pipeline.py", schedule, ranks=2)
    assert capture.warnings == ()
    sent, received = (
        sum(int(one.columns[column][one.rows(kind)].sum()) for one in capture.classes)
        for kind, column in ((EventKind.SEND, "bytes_read"), (EventKind.RECEIVE, "bytes_written"))
    )
    assert sent == received > 0
    samples, microbatch = 16, 16 // 4
    assert microbatch * 4 == samples
    # the gradient of the input of the first stage is not needed
    one = 2.0 * samples * 4 * WIDTH**2
    assert sum(flops(each) for each in capture.classes) == 4 * 6 * one - one


def test_processes_that_load_samples_are_ended(tmp_path: Path) -> None:
    (one,) = captured(SCRIPTS / "loader.py", ranks=2).classes
    copies = [one.text("name", row) for row in one.rows(EventKind.COPY).tolist()]
    assert copies.count("host to device") == 2
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"loader.py" in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_checkpoints_are_not_written(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    target.mkdir()
    capture = captured(SCRIPTS / "checkpoints.py", str(target), ranks=2)
    assert not list(target.iterdir())
    assert [text.partition(" ")[2] for text in capture.warnings] == ["saves a checkpoint, which a capture does not write"] * 2
    loaded = captured(SCRIPTS / "checkpoints.py", str(target), "load", ranks=2)
    assert any("loads a checkpoint" in text for text in loaded.warnings)
    with pytest.raises(RunError, match=r"checkpoints\.py:\d+: the script needs a file that does not exist"):
        captured(SCRIPTS / "checkpoints.py", str(tmp_path / "none"), "load", ranks=2)


def elementwise_bytes(capture: Capture) -> float:
    """Bytes that a rank reads and writes in kernels without products of its model's blocks."""
    one = capture.classes[-1]
    rows = np.array([row for row in one.rows(EventKind.OPERATOR, EventKind.COPY).tolist()
                     if one.text("module", row).startswith("blocks") and not one.columns["flops"][row] > 0])  # fmt: skip
    return float((one.columns["bytes_read"] + one.columns["bytes_written"])[rows].sum())


def test_compiled_regions_have_the_same_products_and_move_less() -> None:
    # more tokens than parameters, whose conversions to 16 bits are the same
    sizes = [*SIZES, "--length=512", "--batch=16"]
    eager, compiled = (captured(EXAMPLES / "gpt_ddp.py", *sizes, *more, ranks=2) for more in ((), ("--compile",)))
    assert flops(compiled.classes[-1]) == flops(eager.classes[-1])
    assert elementwise_bytes(compiled) < 0.95 * elementwise_bytes(eager)
    names = {compiled.classes[-1].text("name", row) for row in compiled.classes[-1].rows(EventKind.OPERATOR).tolist()}
    assert any(name.startswith("inductor::fused_") for name in names)


@pytest.mark.parametrize(
    ("settings", "convolutions", "products"),
    [
        ([], "tf32", "fp32"),
        (["torch.set_float32_matmul_precision('high')"], "tf32", "tf32"),
        (["torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.cudnn.allow_tf32 = False"], "fp32", "tf32"),
        (["torch.backends.fp32_precision = 'ieee'"], "fp32", "fp32"),
        (["torch.backends.fp32_precision = 'tf32'"], "tf32", "tf32"),
        (["torch.backends.cudnn.fp32_precision = 'ieee'"], "fp32", "fp32"),
        (["torch.backends.cudnn.conv.fp32_precision = 'ieee'"], "fp32", "fp32"),
        (["torch.backends.cuda.matmul.fp32_precision = 'tf32'"], "tf32", "tf32"),
        (["torch.backends.fp32_precision = 'ieee'", "torch.backends.cudnn.conv.fp32_precision = 'tf32'"], "tf32", "fp32"),
    ],
)
def test_products_have_the_precision_that_the_flags_for_tf32_allow(
    settings: list[str], convolutions: str, products: str
) -> None:
    script = script_of_capture(captured(SCRIPTS / "tf32.py", *settings, ranks=1), "tf32")
    operators = script.classes[0].operators
    assert {one.precision for one in operators if one.work.convolution} == {convolutions}
    assert {one.precision for one in operators if one.work.products} == {products}


def test_products_of_groups_count_every_row_once_in_each_pass() -> None:
    (one,) = captured(SCRIPTS / "grouped_products.py", ranks=4).classes
    tokens, choices, width, hidden, experts = 255, 2, 64, 128, 4
    # three products forward; gradients of all weights, and of the inputs of the last product
    products = 7 * 2 * tokens * choices * width * hidden
    router = 2 * 2 * tokens * width * experts
    assert flops(one) == products + router
    names = [one.text("name", row) for row in one.rows(EventKind.OPERATOR).tolist()]
    assert names.count("aten::_grouped_mm") == 7


def test_stages_whose_groups_have_no_names_are_one_replica() -> None:
    capture = captured(SCRIPTS / "own_pipeline.py", ranks=8)
    script = script_of_capture(capture, "own_pipeline")
    # two samples in each of four microbatches, of two replicas of two stages of two tensor-parallel ranks
    assert script.samples * script.replicas.count == 16
    sent, received = (
        sum(int(one.columns[column][one.rows(kind)].sum()) for one in capture.classes)
        for kind, column in ((EventKind.SEND, "bytes_read"), (EventKind.RECEIVE, "bytes_written"))
    )
    assert sent == received > 0


def test_groups_with_options_of_nccl_are_recorded_as_without() -> None:
    (one,) = captured(SCRIPTS / "group_options.py", ranks=4).classes
    # of a weight and a bias
    assert collectives(one) == ["all_reduce", "all_reduce"]


def test_a_recommender_has_the_samples_of_its_dense_part_and_the_bytes_of_its_lookups() -> None:
    capture = captured(SCRIPTS / "recommender.py", ranks=8)
    script = script_of_capture(capture, "recommender")
    batch, pooling, width, rows = 1024, 8, 64, 10_000
    assert (script.samples, script.replicas.count) == (batch, 8)
    assert "EmbeddingBag" in script.samples_conflict
    # twelve tables: four ranks have two, four have one
    assert {one.name: one.why for one in capture.classes} == {
        "ranks 0 to 3": "",
        "ranks 4 to 7": "1 instead of 2 _embedding_bag, 1 instead of 2 _embedding_bag_backward, compared with ranks 0 to 3",
    }
    # integers that only the backward pass reads are no decisions
    assert [one.decisions for one in capture.classes] == [(), ()]
    assert {one.work.boundness for each in script.classes for one in each.operators} <= {"bandwidth", None}
    (one, _) = capture.classes
    (row, _) = (row for row in one.rows(EventKind.OPERATOR).tolist() if one.text("name", row) == "aten::_embedding_bag")
    looked_up = min(8 * batch * pooling, rows) * width * 4
    indices = 8 * (8 * batch * pooling + 8 * batch)
    assert one.columns["bytes_read"][row] == looked_up + indices
    assert one.columns["bytes_written"][row] >= 8 * batch * width * 4


def test_copies_to_pinned_memory_are_recorded() -> None:
    (one,) = captured(SCRIPTS / "pinned.py", ranks=1).classes

    copies = [one.text("name", row) for row in one.rows(EventKind.COPY).tolist()]
    assert copies.count("device to host") == 2
    assert not len(one.rows(EventKind.SYNCHRONIZE)), "nobody waits for them"


def test_rows_are_repeated_as_often_as_a_policy_says() -> None:
    (one,) = captured(SCRIPTS / "repeated.py", ranks=1).classes

    # products of 512 and 768 rows, forward, and for the gradient of the weights
    assert flops(one) == 2 * 2 * (512 + 768) * WIDTH**2
    decisions = {(decision.operator, decision.policy) for decision in one.decisions}
    assert ("aten::repeat_interleave", "each element equally often") in decisions


def test_inputs_by_keywords_show_samples_and_silu_has_one_kernel_in_each_pass() -> None:
    capture = captured(SCRIPTS / "by_keywords.py", ranks=1)

    assert script_of_capture(capture, "by_keywords").samples == 8
    (one,) = capture.classes
    names = [one.text("name", row) for row in one.rows(EventKind.OPERATOR).tolist()]
    assert names.count("aten::silu") == names.count("aten::silu_backward") == 1
    assert "aten::sigmoid" not in names


def test_ranks_compare_numbers_with_rank_0_and_leave_parameters_unused() -> None:
    (one,) = captured(SCRIPTS / "compared_ranks.py", ranks=4).classes
    # statistics of gradients, gradients, and which parameters were used
    assert (collectives(one).count("all_reduce"), collectives(one).count("all_gather")) == (3, 1)


def test_an_optimizer_may_be_called_for_one_parameter_after_another() -> None:
    (one,) = captured(SCRIPTS / "group_by_group.py", ranks=1).classes
    updates = [row for row in one.rows(EventKind.OPERATOR).tolist() if "adam" in one.text("name", row)]
    # the gradient of the input is not needed
    assert (len(updates), flops(one)) == (3, (3 * 3 - 1) * 2 * 2 * 64**2)


def test_what_one_rank_alone_may_decide_is_said_and_what_is_only_printed_is_noted() -> None:
    capture = captured(SCRIPTS / "decided_by_ranks.py", ranks=8)
    said = [text.partition(", to which")[0] for text in capture.warnings]
    decides = "decides a branch, a loop or a size by the result of all_reduce"
    assert said == [
        f"decided_by_ranks.py:{at} {decides} (decided_by_ranks.py:{of})" for at, of in ((24, 23), (27, 27))
    ]  # fmt: skip
    (one,) = capture.classes
    noted = {decided.line: decided.words for decided in one.decisions}
    assert noted.keys() == {"decided_by_ranks.py:21"}
    (by_collective, *_) = (decided for decided in one.decisions if decided.policy == EQUAL_RANKS)
    assert by_collective.words == (
        "the script reads a result of all_reduce (decided_by_ranks.py:20); all ranks count as contributing the same"
    )


def test_compiled_steps_of_optimizers_send_and_multiply_what_their_code_does() -> None:
    (one,) = captured(SCRIPTS / "compiled_optimizer.py", ranks=2).classes
    width, layers, rows, batch, iterations = 256, 4, 1024, 32, 5
    # each rank orthogonalises half of the matrices by three products an iteration
    assert flops(one) == 3 * layers * 2 * batch * width**2 + layers // 2 * iterations * 3 * 2 * width**3
    names = collectives(one)
    # of the embedding, and of two pairs of matrices
    assert (names.count("reduce_scatter"), names.count("all_gather")) == (3, 3)
    sent = one.columns["bytes_read"][one.rows(EventKind.COLLECTIVE)].sum()
    assert sent == 4 * 1.5 * (rows * width + layers * width**2)
    fused = [row for row in one.rows(EventKind.OPERATOR).tolist() if one.text("name", row).startswith("inductor::")]
    assert set(one.columns["phase"][fused].tolist()) == {TrainingPass.FORWARD, TrainingPass.BACKWARD, TrainingPass.OPTIMIZER}


@pytest.mark.parametrize("arguments", [(), ("--compile",)])
def test_compiled_attention_by_blocks_is_one_kernel_in_each_pass(arguments: tuple[str, ...]) -> None:
    capture = captured(SCRIPTS / "compiled_attention.py", *arguments, ranks=1)
    assert [one.decisions for one in capture.classes] == [()]
    layers, width, length, batch = 2, 128, 512, 2
    products = 2 * batch * length * width**2
    # all scores count; the gradient of the first input is not needed
    scores = 4 * batch * length**2 * width
    assert flops(capture.classes[0]) == layers * (3 * 4 * products + 3.5 * scores) - 3 * products
    operators = script_of_capture(capture, "compiled_attention").classes[0].operators
    # 10 of 16 blocks of 128 × 128 are on the diagonal or below
    attention = {(one.work.backward, one.work.attention.seen) for one in operators if one.work.attention is not None}
    assert attention == {(False, 10 / 16), (True, 10 / 16)}
