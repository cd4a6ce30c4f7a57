"""Kernels from outside PyTorch have the work that their record, or a file that describes them, gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.captured.known_kernels import attention_work, counted_flops, kernel_work, plain_of
from scaleproof.simulator.captured.record import Signature
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model.operators import Product
from scaleproof.simulator.model.torch_operators import Work


def launched(values: dict[str, object], **shapes: tuple[int, ...]) -> Signature:
    """A launch that reads tensors of shapes, by names."""
    tensors = tuple((shape, "bfloat16", True) for shape in shapes.values())
    return Signature(tensors, (), {"tensors": list(shapes), "values": values})


def test_a_record_keeps_the_work_of_a_kernel() -> None:
    for work in (
        attention_work(2, 8, 128, 256, 64, key_heads=2, backward=True),
        Work(products=(Product(2, 3, 4),), narrow=True),
    ):
        read = kernel_work("flash_attn::any", Signature((), (), {"work": plain_of(work)}), 10.0)
        assert (read.attention, read.products, read.narrow, read.moved_bytes) == (
            work.attention,
            work.products,
            work.narrow,
            10.0,
        )
        assert read.flops == work.flops


def test_the_scores_that_a_backward_pass_computes_again_count_as_in_pytorch() -> None:
    forward, backward = (attention_work(1, 2, 16, 16, 8, backward=again) for again in (False, True))
    assert counted_flops(forward) == 2 * 2 * 2 * 16 * 16 * 8
    assert counted_flops(backward) == 2.5 * counted_flops(forward)


def test_kernels_by_name_compute_what_their_arguments_say() -> None:
    product = kernel_work("triton::matmul_kernel", launched({"M": 4, "N": 5, "K": 6}), 1.0)
    assert product.products == (Product(4, 5, 6),)
    shapes = {"Q": (2, 128, 8, 64), "K": (2, 128, 2, 64), "V": (2, 128, 2, 64)}
    values = {"nheads": 8, "seqlen_q": 128, "seqlen_k": 128, "IS_CAUSAL": True}
    attention = kernel_work("triton::_fwd_kernel", launched(values, **shapes), 1.0)
    assert attention == kernel_work(
        "any", Signature((), (), {"work": plain_of(attention_work(2, 8, 128, 128, 64, key_heads=2, seen=0.5))}), 1.0
    )
    assert kernel_work("triton::_rms_norm_forward_kernel", launched({}), 3.0).boundness == "bandwidth"
    assert kernel_work("triton::mine", launched({}), 3.0) == Work(moved_bytes=3.0, boundness="unknown")


def test_operators_of_others_are_not_what_pytorch_calls_so() -> None:
    tensors = (((2, 3), "float32", True), ((3, 4), "float32", True))
    assert kernel_work("aten::mm", Signature(tensors, (), {}), 1.0).products
    assert kernel_work("mine::mm", Signature(tensors, (), {}), 1.0).boundness == "unknown"


def test_a_file_describes_further_kernels(tmp_path: Path) -> None:
    file = tmp_path / "kernels.yaml"
    file.write_text("kernels:\n  - names: mine\n    products: [['x[0]', 'w[1]', 'x[1]', 'n // 2']]\n    source: me\n")
    arguments = launched({"n": 4}, x=(8, 16), w=(16, 32))
    assert kernel_work("triton::mine", arguments, 1.0, file).products == (Product(8, 32, 16, 2),)
    with pytest.raises(InputError, match=r"kernels.yaml: mine: 'n' is no argument of the kernel, which has x, w"):
        kernel_work("triton::mine", launched({}, x=(8, 16), w=(16, 32)), 1.0, file)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("kernels:\n  - names: mine\n")
    with pytest.raises(InputError, match=r"wrong.yaml: expected a list 'kernels' of entries with names, and bound"):
        kernel_work("triton::mine", arguments, 1.0, wrong)
