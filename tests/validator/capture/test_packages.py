"""Kernels from outside PyTorch are recorded with their work, whether their packages are installed or not."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from scaleproof.simulator.captured.kernels import KernelTimes
from scaleproof.simulator.captured.reading import allocations_of, script_of_capture
from scaleproof.simulator.captured.record import Capture, EventKind, RecordedRanks
from scaleproof.simulator.common.allocations import Allocation
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.scenario.read import load_device
from scaleproof.validator.capture.capture import CaptureOptions, capture
from scaleproof.validator.capture.job import CaptureJob, Script
from tests.validator.capture.test_capture import DEVICE, captured
from tests.validator.verdicts import at_night

SCRIPTS: Final = Path(__file__).parent / "scripts"
WIDTH, LENGTH, BATCH = 256, 128, 2
TOKENS: Final = BATCH * LENGTH

pytestmark = pytest.mark.full


@functools.cache
def kernels(name: str, ranks: int = 1) -> tuple[Capture, RecordedRanks]:
    found = captured(SCRIPTS / "stand_ins.py", name, ranks=ranks)
    return found, found.classes[0]


def named(one: RecordedRanks, words: str) -> list[int]:
    """Rows of the operators whose names have some words in them."""
    return [row for row in one.rows(EventKind.OPERATOR).tolist() if words in one.text("name", row)]


@pytest.mark.parametrize("package", ["flash_attn", *at_night("varlen", "xformers")])
def test_attention_of_a_package_costs_as_much_as_pytorchs(package: str) -> None:
    own, other = kernels("")[1], kernels(package)[1]
    rows = [(named(one, "attention") or named(one, "flash_attn")) for one in (own, other)]
    assert list(map(len, rows)) == [2, 2]
    for mine, theirs in zip(*rows, strict=True):
        assert own.columns["flops"][mine] == other.columns["flops"][theirs] > 0
        for column in ("bytes_read", "bytes_written"):
            assert other.columns[column][theirs] == pytest.approx(own.columns[column][mine], rel=1e-3)
    works = [[operator.work for operator in script_of_capture(_of(one), "k").classes[0].operators] for one in (own, other)]
    attentions = [[(work.attention, work.samples, work.backward) for work in found if work.attention] for found in works]
    assert attentions[0] == attentions[1]


def _of(one: RecordedRanks) -> Capture:
    return Capture("a.py", (), "2.13", 1, 1, "h100-80gb-sxm", None, (one,))


def test_products_of_transformer_engine_cost_their_precision() -> None:
    device, framework = load_device("h100-80gb-sxm"), shipped("pytorch-ddp")
    spent = {}
    for kind in ("fp8", "bf16"):
        one = script_of_capture(kernels(f"transformer_engine-{kind}")[0], "k").classes[0]
        products = [operator for operator in one.operators if operator.work.products]
        assert {operator.precision for operator in products} == {kind}
        # the input's gradient is not needed
        assert sum(operator.work.flops for operator in products) == 2 * 2 * TOKENS * 4 * WIDTH * WIDTH
        # the same products where they are large enough for rates to matter
        large = [(replace(operator.work, products=(operator.work.products[0]._replace(m=8192, n=8192, k=8192),)), kind)
                 for operator in products]  # fmt: skip
        spent[kind] = sum(time.seconds for time in KernelTimes(device, framework).times(large))
    assert 1.5 < spent["bf16"] / spent["fp8"] < 2.0


def test_products_of_groups_of_transformer_engine_are_one_kernel() -> None:
    one = script_of_capture(kernels("transformer_engine-grouped")[0], "k").classes[0]
    products = [operator.work for operator in one.operators if operator.work.products]
    # of three groups that have rows, forward and for the gradient of the weights
    assert [len(work.products) for work in products] == [3, 3]
    assert sum(work.flops for work in products) == 2 * 2 * TOKENS * WIDTH * 4 * WIDTH


def test_sequences_that_ranks_share_go_around() -> None:
    ranks = 4
    capture = kernels("transformer_engine-ring", ranks)[0]
    one = capture.classes[0]
    sent = one.columns["bytes_read"][one.rows(EventKind.SEND)].tolist()
    pair = 2 * BATCH * LENGTH * WIDTH * 2
    # keys and values, again in the backward pass, and their gradients
    assert sent == [pair] * 3 * (ranks - 1)
    assert len(named(one, "fused_attn")) == 2 * ranks
    # layout is (sequence, samples, heads, width)
    scores = 2 * LENGTH * BATCH**2 * WIDTH
    attended = sum(float(one.columns["flops"][row]) for row in named(one, "fused_attn"))
    assert attended == pytest.approx(ranks * (2 + 5) * scores)


def test_a_package_whose_kernels_cannot_run_has_its_stand_in(tmp_path: Path) -> None:
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text("def flash_attn_func(*_, **__):\n    raise RuntimeError('no kernel image')\n")
    script = tmp_path / "train.py"
    script.write_text((SCRIPTS / "stand_ins.py").read_text(encoding="utf-8"), encoding="utf-8")
    found = captured(script, "flash_attn", ranks=1)
    assert named(found.classes[0], "flash_attn::")
    assert any("cannot run here" in warning for warning in found.warnings)


def test_weights_in_4_bits_and_states_in_8_bits_have_their_scales() -> None:
    one = kernels("bitsandbytes")[1]
    sizes = [(allocation.size_bytes, allocation.holder) for allocation in _live(one)]
    weights = WIDTH * WIDTH
    # two weights per byte, a scale of a byte for 64 of them, and a scale of four bytes for 256 scales
    for size in (weights // 2, weights // 64, weights // 64 // 256 * 4):
        assert size in [size_bytes for size_bytes, _ in sizes]
    states = sum(size for size, holder in sizes if holder == "optimizer_states")
    # two states of a byte per weight with a scale for 256 of them; those of the bias are few, and have 32 bits
    assert states == 2 * (weights + weights // 256 * 4 + WIDTH * 4)


def _live(one: RecordedRanks) -> list[Allocation]:
    return [event for part in allocations_of(one) for event in part if isinstance(event, Allocation)]


def test_launches_of_triton_move_the_bytes_of_their_tensors() -> None:
    found = captured(SCRIPTS / "triton_kernels.py", ranks=1)
    (one,), elements = found.classes, 64 * 512
    (row,) = named(one, "triton::double")
    assert [one.columns[column][row] for column in ("bytes_read", "bytes_written")] == [4 * elements, 4 * elements]
    assert one.signature(row).arguments["values"]["grid"] == [elements // 1024]
    (row,) = named(one, "triton::matmul_kernel")
    assert one.columns["flops"][row] == 2 * 64 * 512 * 512
    assert any("tuned" in warning for warning in found.warnings)
    script = script_of_capture(found, "k")
    known = script.coverage(load_device("h100-80gb-sxm"), shipped("pytorch-ddp"))
    assert known.unknown_names == ("triton::double",)
    assert known.unknown > 0


def test_tokens_go_to_the_ranks_of_their_experts() -> None:
    one = kernels("experts", ranks=8)[1]
    rows = one.rows(EventKind.COLLECTIVE).tolist()
    sent = [int(one.columns["bytes_read"][row]) for row in rows if one.text("name", row) == "alltoall"]
    # two neighbouring experts of a token are on the same rank: each token is sent once, back, and its gradient again
    assert sorted(sent)[-3:] == [TOKENS * WIDTH * 2] * 3
    assert sum(one.columns["flops"][row] for row in named(one, "gmm")) == 2 * 2 * TOKENS * WIDTH * WIDTH


@pytest.mark.parametrize("package", ["custom", *at_night("apex", "mamba", "liger")])
def test_other_kernels_are_recorded_by_their_names(package: str) -> None:
    found, one = kernels(package)
    names = {one.text("name", row).partition("::")[0] for row in named(one, "::")} - {"aten"}
    assert names == {
        "apex": {"apex"}, "mamba": {"causal_conv1d", "mamba_ssm"}, "liger": {"liger_kernel"}, "custom": {"mine"},
    }[package]  # fmt: skip
    assert bool(found.warnings) == (package == "custom")


@pytest.mark.nightly
def test_an_optional_package_is_used_where_the_user_names_it(tmp_path: Path) -> None:
    script = tmp_path / "optional.py"
    body = (SCRIPTS / "stand_ins.py").read_text(encoding="utf-8")
    guarded = "try:\n    import flash_attn\n    NAME = 'flash_attn'\nexcept ImportError:\n    NAME = ''\n"
    script.write_text(body.replace('NAME = sys.argv[1] if len(sys.argv) > 1 else ""\n', guarded), encoding="utf-8")
    for packages in ((), ("flash_attn",)):
        job = CaptureJob(Script(str(script)), 1, 1, DEVICE, 3, "balanced", packages=packages)
        found, _ = capture(job, CaptureOptions("h100-80gb-sxm"), lambda _: None)
        assert bool(named(found.classes[0], "flash_attn::")) == bool(packages)
        assert any("--with flash_attn" in warning for warning in found.warnings) == (not packages)
