"""Work of recorded operators: FLOPs by their textbook formulae."""

from __future__ import annotations

import pytest

from scaleproof.simulator.model.torch_operators import Work, base_name, work_of


@pytest.mark.parametrize(
    ("name", "short"),
    [("aten::mm", "mm"), ("aten::add_.Tensor", "add"), ("aten.mm.default", "mm"), ("aten::_foreach_add_.List", "_foreach_add"),
     ("my::op", "op"), ("aten::__and__.Tensor", "__and")],
)  # fmt: skip
def test_the_base_name_has_no_namespace_overload_or_trailing_underscores(name: str, short: str) -> None:
    assert base_name(name) == short


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        ("aten::mm", [(3, 5), (5, 7)], 2 * 3 * 5 * 7),
        ("aten::addmm", [(7,), (3, 5), (5, 7)], 2 * 3 * 5 * 7),
        ("aten::bmm", [(4, 3, 5), (4, 5, 7)], 4 * 2 * 3 * 5 * 7),
        ("aten::baddbmm", [(4, 3, 7), (4, 3, 5), (4, 5, 7)], 4 * 2 * 3 * 5 * 7),
        ("aten::linear", [(2, 3, 5), (7, 5)], 2 * 6 * 5 * 7),
        ("aten::_scaled_mm", [(3, 5), (5, 7), (), ()], 2 * 3 * 5 * 7),
        ("aten::_grouped_mm", [(12, 5), (4, 5, 7), (4,)], 2 * 12 * 5 * 7),
        ("aten::_grouped_mm", [(5, 12), (12, 7), (4,)], 2 * 12 * 5 * 7),
        ("aten::_scaled_grouped_mm", [(12, 5), (4, 5, 7), (12,), (4, 7), (4,)], 2 * 12 * 5 * 7),
        ("aten::_scaled_grouped_mm", [(5, 12), (12, 7), (20,), (28,), (4,)], 2 * 12 * 5 * 7),
    ],
)
def test_products_take_two_flops_per_multiply_add(name: str, shapes: list[tuple[int, ...]], flops: float) -> None:
    assert work_of(name, shapes, {}, 0.0).flops == flops


def test_attention_counts_all_scores_and_twice_as_many_backward() -> None:
    query, key = (2, 8, 128, 64), (2, 2, 256, 64)
    forward = work_of("aten::_scaled_dot_product_flash_attention", [query, key, key], {"is_causal": True}, 0.0)
    gradient = work_of(
        "aten::_scaled_dot_product_flash_attention_backward", [query, query, key, key, query], {"is_causal": True}, 0.0
    )
    assert forward.flops == 2 * (2 * 8) * 128 * 256 * (64 + 64)
    assert gradient.flops == 2 * forward.flops
    assert forward.attention is not None
    assert (forward.attention.key_heads, forward.attention.seen) == (2, 0.5)


def test_kernels_that_have_the_sequence_before_the_heads_do_the_same_work() -> None:
    heads_first = work_of("aten::_scaled_dot_product_flash_attention", [(2, 8, 128, 64)] * 3, {}, 0.0)
    sequence_first = work_of("aten::_flash_attention_forward", [(2, 128, 8, 64)] * 3, {}, 0.0)
    assert heads_first.flops == sequence_first.flops


def test_a_convolution_is_a_product_per_output_position() -> None:
    image, weight = (2, 3, 32, 32), (16, 3, 3, 3)
    forward = work_of("aten::convolution", [image, weight], {"stride": [1], "padding": [1]}, 0.0)
    assert forward.flops == 2 * 2 * 32 * 32 * 16 * 3 * 9
    gradients = work_of("aten::convolution_backward", [(2, 16, 32, 32), image, weight], {}, 0.0)
    assert gradients.flops == 2 * forward.flops
    weights = work_of("aten::convolution_backward", [(2, 16, 32, 32), image, weight], {"output_mask": (False, True, True)}, 0.0)
    assert weights.flops == forward.flops


@pytest.mark.parametrize("name", ["aten::view", "aten::empty_strided", "aten::detach", "aten::t", "aten::record_stream"])
def test_views_and_allocations_launch_nothing(name: str) -> None:
    assert not work_of(name, [(3, 5)], {}, 60.0).launches


@pytest.mark.parametrize(
    "name",
    ["aten::add.Tensor", "aten::gelu_backward", "aten::native_layer_norm", "aten::_foreach_addcmul_.ScalarList", "aten::cat",
     "aten::_fused_adamw_", "aten::embedding_dense_backward", "aten::_softmax_backward_data", "aten::nll_loss_forward",
     "aten::copy_", "aten::sum.dim_IntList", "aten::split_with_sizes_copy",
     "aten::random_", "fsdp::chunk_cat", "aten::native_dropout_backward",
     "aten::_to_copy"],
)  # fmt: skip
def test_elementwise_operators_and_reductions_are_bound_by_bandwidth(name: str) -> None:
    assert work_of(name, [(3, 5)], {}, 60.0) == Work(moved_bytes=60.0, boundness="bandwidth")


@pytest.mark.parametrize("name", ["aten::linalg_svd", "mylib::flash_thing", "aten::fft_r2c"])
def test_other_operators_are_unknown(name: str) -> None:
    assert work_of(name, [(3, 5)], {}, 60.0).boundness == "unknown"
