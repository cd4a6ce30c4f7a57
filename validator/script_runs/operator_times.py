"""Seconds of a capture's operators on this machine, by replays of each class on as many cores as ranks would use.

A replay calls operators in the captured order, with real tensors and without communication. Tensors lie in allocations that
begin and end where the captured ones did, so that caches and the system's pages are in the state in which training leaves them.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from scaleproof.simulator.captured.record import Capture, EventKind, RecordedRanks
from scaleproof.validator.capture.backend.calls import OperatorCall, TensorUse
from scaleproof.validator.capture.backend.schemas import tensors_of
from scaleproof.validator.launch import rank
from scaleproof.validator.launch.job import Host
from scaleproof.validator.launch.launch import LocalRanks, run_on_ranks, temporary_folder
from scaleproof.validator.record.cpu_usage import usable
from scaleproof.validator.script_runs.host_memory import keep_freed

# Seconds for the replays of each class, if fewer steps than the most do not take less.
_BUDGET_S: Final = 5.0
_WARMUP: Final = 1
_FEWEST: Final = 3
_MOST: Final = 12
_SMALL: Final = 0.02
_ATEN: Final = torch.ops.aten


def with_times(
    capture: Capture,
    calls: Sequence[Mapping[int, OperatorCall]],
    device: str,
    timeout_s: float,
    progress: Callable[[str], None],
) -> Capture:
    """The capture with seconds of its operators on this machine, whose device has a name. Raises RankError."""
    concurrent = min(capture.world_size, len(usable()))
    keys: list[tuple[str, float]] = []
    with temporary_folder() as folder:
        for number, (one, own) in enumerate(zip(capture.classes, calls, strict=True)):
            progress(f"timing operators of {one.name}")
            path = Path(folder) / f"calls-{number}"
            write(one, own, path)
            ranks = LocalRanks([Host()] * concurrent)
            results = run_on_ranks(replay_here, ranks, str(path), _BUDGET_S, timeout_s=timeout_s)
            for rows in zip(*results, strict=True):
                keys.append((one.operator_key(int(rows[0][0])), float(np.mean([seconds for _, seconds in rows]))))
    return replace(capture, timed_on=device, timed_s=mean_by_key(iter(keys)))


def between(before: Capture, after: Capture) -> Capture:
    """The capture with the mean of seconds that were measured before and after a run."""
    timed_s = before.timed_s or {}
    return replace(
        before, timed_s={key: (seconds + timed_s.get(key, seconds)) / 2 for key, seconds in (after.timed_s or {}).items()}
    )


class _Allocations:
    """The memory of a replay. sizes: bytes by number of an allocation. before: those that are live when the step begins."""

    def __init__(self, sizes: Mapping[int, int], before: set[int]) -> None:
        self._sizes, self._before = sizes, before
        self._storages: dict[int, torch.UntypedStorage] = {}

    def tensor(self, use: TensorUse) -> torch.Tensor:
        """A tensor as a call has it."""
        if use.allocation < 0:
            return torch.zeros(use.size, dtype=use.dtype) if use.values is None else use.values
        needed = _end_bytes(use)
        storage = self._storages.get(use.allocation)
        is_new = storage is None or storage.nbytes() < needed
        if storage is None or is_new:
            storage = self._storages[use.allocation] = torch.UntypedStorage(  # type: ignore[no-untyped-call]
                max(needed, self._sizes.get(use.allocation, 0))
            )
        if is_new and use.allocation in self._before:
            _fill(storage, use.dtype)
        tensor = torch.empty(0, dtype=use.dtype).set_(storage, use.offset, use.size, use.stride)
        if use.values is not None:
            # elements that a stride of zero repeats are written once
            once = tuple(slice(0, 1) if step == 0 else slice(None) for step in use.stride)
            tensor[once].copy_(use.values[once])
        elif is_new and not use.dtype.is_floating_point:
            tensor.zero_()
        return tensor

    def returned(self, uses: Sequence[TensorUse], tensors: Sequence[torch.Tensor]) -> None:
        """Keeps what a call has returned."""
        for use, tensor in zip(uses, tensors, strict=False):
            if use.allocation >= 0 and use.allocation not in self._storages:
                self._storages[use.allocation] = tensor.untyped_storage()

    def free(self, number: int) -> None:
        """Ends an allocation."""
        self._storages.pop(number, None)

    def begin_again(self, freed: set[int]) -> None:
        """Gives what the step has left to allocations of the same size that it has freed, as the next step finds it."""
        left = defaultdict(list)
        for number in [number for number in self._storages if number not in self._before]:
            left[self._sizes.get(number, 0)].append(self._storages.pop(number))
        for number in sorted(freed & self._before):
            same = left[self._sizes.get(number, 0)]
            if same:
                self._storages[number] = same.pop(0)


def _end_bytes(use: TensorUse) -> int:
    if 0 in use.size:
        return 0
    last = sum((length - 1) * step for length, step in zip(use.size, use.stride, strict=True))
    return (use.offset + last + 1) * use.dtype.itemsize


def _fill(storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
    """Small values, so that results of many operators stay finite."""
    whole = torch.empty(0, dtype=dtype).set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
    if dtype.is_floating_point:
        whole.normal_(0.0, _SMALL)
    else:
        whole.zero_()


class Replay:
    """The step of a rank class. calls: of its operators by their rows."""

    def __init__(self, columns: Mapping[str, Any], calls: Mapping[int, OperatorCall]) -> None:
        kinds, numbers, sizes = (columns[name].tolist() for name in ("kind", "allocation", "size"))
        begin = kinds.index(EventKind.STEP)
        allocated = [row for row, kind in enumerate(kinds) if kind == EventKind.ALLOCATE]
        self._before = {numbers[row] for row in allocated if row < begin}
        self._sizes = {numbers[row]: sizes[row] for row in allocated}
        self._rows = [(row, kind, numbers[row]) for row, kind in enumerate(kinds) if row > begin]
        self._calls = {row: (on_processor(call.operator), call) for row, call in calls.items()}
        self._memory = _Allocations(self._sizes, self._before)

    def step(self) -> dict[int, float]:
        """Seconds of each operator by its row; without those that this processor cannot run."""
        memory, spent_s, freed = self._memory, {}, set()
        for row, kind, number in self._rows:
            if kind == EventKind.FREE:
                memory.free(number)
                freed.add(number)
            elif row in self._calls:
                operator, call = self._calls[row]
                seconds = self._call(operator, call)
                if seconds is not None:
                    spent_s[row] = seconds
        memory.begin_again(freed)
        return spent_s

    def _call(self, operator: Callable[..., Any] | None, call: OperatorCall) -> float | None:
        if operator is None:
            return None
        memory = self._memory
        arguments, keywords = tree_map(
            lambda value: memory.tensor(value) if isinstance(value, TensorUse) else value, (call.arguments, call.keywords),
            is_leaf=lambda value: isinstance(value, TensorUse),
        )  # fmt: skip
        try:
            begin_s = time.perf_counter()
            result = operator(*arguments, **keywords)
            end_s = time.perf_counter()
        except (RuntimeError, NotImplementedError, IndexError, TypeError):
            # it exists on GPUs only, or its values matter
            return None
        memory.returned(call.outputs, tensors_of(result))
        return end_s - begin_s


def replay_here(path: str, budget_s: float) -> list[list[float]]:
    """On a rank: row and seconds of each operator of the class in a file, the median over several steps."""
    columns, calls = pickle.loads(Path(path).read_bytes())  # noqa: S301 - written by `write`
    torch.set_grad_enabled(False)
    keep_freed()
    replay = Replay(columns, calls)
    taken: defaultdict[int, list[float]] = defaultdict(list)
    begin_s = time.monotonic()
    gc.disable()
    try:
        for number in range(_WARMUP + _MOST):
            dist.barrier()
            step = replay.step()
            for row, seconds in step.items() if number >= _WARMUP else ():
                taken[row].append(seconds)
            if any(rank.exchange(number + 1 >= _WARMUP + _FEWEST and time.monotonic() - begin_s > budget_s)):
                break
    finally:
        gc.enable()
    return [[float(row), float(np.median(seconds))] for row, seconds in taken.items()]


def write(one: RecordedRanks, calls: Mapping[int, OperatorCall], path: Path) -> None:
    """Writes what a rank replays."""
    columns = {name: one.columns[name] for name in ("kind", "allocation", "size")}
    path.write_bytes(pickle.dumps((columns, dict(calls))))


def mean_by_key(keys: Iterator[tuple[str, float]]) -> dict[str, float]:
    """Mean seconds of each operator."""
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for key, seconds in keys:
        taken[key].append(seconds)
    return {key: float(np.mean(seconds)) for key, seconds in taken.items()}


def on_processor(name: str) -> Callable[..., Any] | None:
    """The operator with a name and overload, such as 'aten::mm.default', as a processor runs it; None if it is not known."""
    if name in _OTHERS:
        return _OTHERS[name]
    qualified, _, overload = name.rpartition(".")
    namespace, _, base = qualified.partition("::")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), base), overload)  # type: ignore[no-any-return]
    except AttributeError:
        return None


def _attend(query: Any, key: Any, value: Any, dropout: float, is_causal: bool, mask: Any, scale: Any) -> Any:
    attend = _ATEN._scaled_dot_product_flash_attention_for_cpu
    return attend(query, key, value, dropout, is_causal, attn_mask=mask, scale=scale)


def _attend_backward(
    grad: Any, query: Any, key: Any, value: Any, out: Any, dropout: float, is_causal: bool, mask: Any, scale: Any
) -> Any:
    # logarithms of sums lie otherwise on processors
    sums = torch.zeros(query.size(0), query.size(2), query.size(1))
    backward = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(grad, query, key, value, out, sums, dropout, is_causal, attn_mask=mask, scale=scale)


def _flash(
    query: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, _: bool = False, *, scale: Any = None
) -> Any:
    return _attend(query, key, value, dropout, is_causal, None, scale)


def _flash_backward(
    grad: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, first: Any, second: Any, most: Any, most_keys: Any,
    dropout: float, is_causal: bool, seed: Any, offset: Any, *, scale: Any = None,
) -> Any:  # fmt: skip
    return _attend_backward(grad, query, key, value, out, dropout, is_causal, None, scale)


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, sums: bool, dropout: float = 0.0, is_causal: bool = False, *, scale: Any = None
) -> Any:
    return _attend(query, key, value, dropout, is_causal, mask, scale)


def _efficient_backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, out: Any, sums: Any, seed: Any, offset: Any, dropout: float,
    wanted: Any, is_causal: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    return _attend_backward(grad, query, key, value, out, dropout, is_causal, mask, scale)


def _convolution_backward(grad: Any, image: Any, weight: Any, *rest: Any) -> Any:
    *geometry, mask = rest
    return _ATEN.convolution_backward(grad, image, weight, [weight.size(0)], *geometry, mask)


_OTHERS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten::_scaled_dot_product_flash_attention.default": _flash,
    "aten::_scaled_dot_product_flash_attention_backward.default": _flash_backward,
    "aten::_scaled_dot_product_efficient_attention.default": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "aten::convolution_overrideable.default": _ATEN.convolution.default,
    "aten::convolution_backward_overrideable.default": _convolution_backward,
}
