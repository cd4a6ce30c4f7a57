"""Stands in for grouped_gemm and deep_ep: products of groups of rows, and tokens that go to the ranks of their experts."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.packages.functions import product
from scaleproof.validator.capture.packages.operator import integers, launch


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Any, right: Any, turned: bool) -> Any:
        ctx.save_for_backward(left, right)
        return _multiplied(left, right, right.shape[1 if turned else 2])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        left, right = ctx.saved_tensors
        groups, rows, inner = right.shape[0], left.shape[0], left.shape[1]
        of_left = _multiplied(gradient, right, inner) if ctx.needs_input_grad[0] else None
        work = product(right.shape[1], right.shape[2], max(1, rows // groups), groups)
        wanted = [(right.shape, right.dtype)]
        of_right = launch("grouped_gemm::gmm", [left, gradient], wanted, work)[0] if ctx.needs_input_grad[1] else None
        return of_left, of_right, None


def _multiplied(left: Any, right: Any, columns: int) -> Any:
    rows, inner = left.shape
    work = product(max(1, rows // right.shape[0]), columns, inner, right.shape[0])
    return launch("grouped_gemm::gmm", [left, right], [((rows, columns), left.dtype)], work)[0]


_grouped: Final[Any] = _Grouped.apply


def gmm(a: Any, b: Any, batch_sizes: Any, trans_b: bool = False) -> Any:
    """Products of groups of rows with a matrix each; groups count as equally large."""
    return _grouped(a, b, trans_b)


class Buffer:
    """`deep_ep.Buffer`: sends each token once to each rank that has one of its experts."""

    num_sms = 20

    def __init__(self, group: Any, *_: Any, low_latency_mode: bool = False, **__: Any) -> None:
        if low_latency_mode:
            raise RunError("deep_ep's low_latency_mode is for inference and is not captured; leave it out")
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)

    @staticmethod
    def set_num_sms(_: int) -> None:
        """The number of processors that communicate is not recorded."""

    @staticmethod
    def get_dispatch_config(_: int) -> Any:
        """Settings, which have no effect."""
        return types.SimpleNamespace(get_nvl_buffer_size_hint=lambda *_: 0, get_rdma_buffer_size_hint=lambda *_: 0)

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, *_: Any, **__: Any) -> Any:
        """Numbers of tokens for each rank, none for nodes, and for each expert; and which ranks each token goes to."""
        known = integers(topk_idx)
        chosen = np.array(known if known is not None else np.arange(topk_idx.numel()) % num_experts).reshape(topk_idx.shape)
        of_rank = chosen // (num_experts // self.ranks)
        goes = np.stack([((of_rank == rank) & (chosen >= 0)).any(-1) for rank in range(self.ranks)], -1)
        experts = np.bincount(chosen[chosen >= 0].ravel(), minlength=num_experts)
        numbers = [
            torch.from_numpy(one).to(topk_idx.device) for one in (goes.sum(0).astype(np.int32), experts.astype(np.int32), goes)
        ]
        return numbers[0], None, numbers[1], numbers[2], _event()

    def dispatch(self, x: Any, handle: Any = None, num_tokens_per_rank: Any = None, **given: Any) -> Any:
        """Sends tokens to the ranks of their experts; other ranks send as many to this one as it keeps."""
        values = x[0] if isinstance(x, tuple) else x
        index, weights = given.get("topk_idx"), given.get("topk_weights")
        numbers: list[int] = []
        if handle is None:
            sent = integers(num_tokens_per_rank) or [values.shape[0]] * self.ranks
            counts = integers(given["num_tokens_per_expert"]) or []
            own = len(counts) // self.ranks
            numbers = [self.ranks * one for one in counts[self.rank * own : (self.rank + 1) * own]]
            handle = sent, values.shape[0]
        sent, _ = handle
        received = [self._exchanged(one, sent) for one in (values, *(x[1:] if isinstance(x, tuple) else ()))]
        others = [self._exchanged(one, sent) if one is not None else None for one in (index, weights)]
        result = tuple(received) if isinstance(x, tuple) else received[0]
        return result, others[0], others[1], numbers, handle, _event()

    def combine(self, x: Any, handle: Any, topk_weights: Any = None, **_: Any) -> Any:
        """Sends results back, and sums those of each token."""
        sent, tokens = handle
        back = [self._exchanged(one, sent, back=True) if one is not None else None for one in (x, topk_weights)]
        sums = [
            launch("deep_ep::combine", [one], [((tokens, *one.shape[1:]), one.dtype)])[0] if one is not None else None
            for one in back
        ]
        return sums[0], sums[1], _event()

    def _exchanged(self, values: Any, sent: list[int], back: bool = False) -> Any:
        """Rows after an all-to-all. back: whether those that were received are returned."""
        splits = [sent[self.rank]] * self.ranks
        inputs, outputs = (splits, sent) if back else (sent, splits)
        packed = launch("deep_ep::pack", [values], [((sum(inputs), *values.shape[1:]), values.dtype)])[0]
        result = values.new_empty(sum(outputs), *values.shape[1:])
        dist.all_to_all_single(result, packed, outputs, inputs, group=self.group)
        return result


def _event() -> Any:
    """What a script waits for on another stream; communication here is on the current one."""
    return types.SimpleNamespace(current_stream_wait=lambda: None, event=None)


MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "grouped_gemm": {}, "grouped_gemm.ops": {"gmm": gmm}, "deep_ep": {"Buffer": Buffer, "EventOverlap": lambda *_: _event()},
    "deep_ep.utils": {"EventOverlap": lambda *_: _event(), "EventHandle": lambda *_: None},
}  # fmt: skip
