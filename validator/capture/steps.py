"""Training steps of a script, by the steps of its optimizers: when one repeats the one before, it is kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from scaleproof.simulator.captured.record import Category, EventKind, ModelInput, UsedOptimizer
from scaleproof.validator.capture.backend.memory import Arena
from scaleproof.validator.capture.context import path_in
from scaleproof.validator.capture.trace import RankTrace

# Steps that may differ from the one before until one of them is kept anyway.
_MORE_STEPS: Final = 3
# Steps of optimizers for which one that has not taken any yet is waited for, in steps of the script.
_PATIENCE: Final = 4


class Mark(NamedTuple):
    """The end of an optimizer's step: the optimizer, the row after it, and inputs of modules since the last one."""

    optimizer: int
    row: int
    inputs: tuple[ModelInput, ...]


class KeptStep(NamedTuple):
    """The step that is kept: rows where it begins and ends, its number, steps in all, inputs, optimizers, and whether it equals
    the one before. first_mark: number of marks before it. first_end: the row where the first step ends."""

    begin: int
    end: int
    number: int
    steps: int
    inputs: tuple[ModelInput, ...]
    optimizers: tuple[UsedOptimizer, ...]
    is_steady: bool
    first_mark: int
    first_end: int


class Steps:
    """Follows optimizers. wanted: steps of the script; then `finish` is called, on the script's thread."""

    def __init__(self, trace: RankTrace, arena: Arena, wanted: int, finish: Callable[[], None]) -> None:
        self._trace, self._arena, self._wanted, self._finish = trace, arena, wanted, finish
        self._marks: list[Mark] = []
        # marks from before the first step that trains
        self._forgotten: int | None = None
        self._names: dict[int, str] = {}
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.parameters: dict[int, torch.Tensor] = {}

    def install(self) -> None:
        """Adds hooks to all optimizers."""
        register_optimizer_step_pre_hook(lambda *_: self._trace.context.begin_optimizer())
        register_optimizer_step_post_hook(lambda optimizer, *_: self._stepped(optimizer))
        optimizers: Any = Optimizer
        init = optimizers.__init__

        def noted(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> None:
            init(optimizer, *arguments, **keywords)
            self._made.add(optimizer)

        optimizers.__init__ = noted

    @property
    def count(self) -> int:
        """Steps of the script so far."""
        return len(self._marks) // max(self._period(), 1)

    def _stepped(self, optimizer: Optimizer) -> None:
        with self._trace.host.recording():
            self._note(optimizer)
            is_enough = self._is_enough()
        if is_enough:
            self._finish()

    def _note(self, optimizer: Optimizer) -> None:
        context = self._trace.context
        self._record_host_update(optimizer)
        context.end_optimizer()
        self._arena.collect()
        self._categorise(optimizer)
        self._names[id(optimizer)] = type(optimizer).__name__
        trains = self._trace.trains(self._marks[-1].row if self._marks else 0)
        if self._marks and not trains and self._marks[-1].optimizer == id(optimizer):
            # an optimizer that is called for one group of parameters after another, or to make its states
            return
        if trains and self._forgotten is None:
            self._forgotten = len(self._marks)
            self._marks.clear()
        self._marks.append(Mark(id(optimizer), self._trace.mark(), _merged(context.inputs)))
        context.begin_step()

    def _record_host_update(self, optimizer: Optimizer) -> None:
        """Records the step over the parameters that are on the host, which `backend.registration` does not compute."""
        parameters = (one for group in optimizer.param_groups for one in group["params"] if one.grad is not None)
        updated = sum(local.numel() for local in map(local_part, parameters) if local.device.type == "cpu")
        if updated:
            self._trace.add(EventKind.HOST_UPDATE, name=type(optimizer).__name__, size=updated)

    def _is_enough(self) -> bool:
        period = self._period()
        if not period or self._forgotten is None or len(self._marks) < self._wanted * period:
            return False
        stepped = {mark.optimizer for mark in self._marks}
        waits = any(id(optimizer) not in stepped for optimizer in self._made)
        if waits and len(self._marks) < _PATIENCE * self._wanted * period:
            return False
        kept = self.kept()
        assert kept is not None
        return kept.is_steady or self.count >= self._wanted + _MORE_STEPS

    def _period(self) -> int:
        return shortest_period([mark.optimizer for mark in self._marks])

    def kept(self) -> KeptStep | None:
        """The last step; None where no optimizer has taken a step."""
        if not self._marks:
            return None
        period = self._period() or len(self._marks)
        count = len(self._marks) // period
        begin = self._marks[-period - 1].row if len(self._marks) > period else 0
        end = self._marks[-1].row
        used = [self._marks[-place].optimizer for place in range(period, 0, -1)]
        inputs = _merged(one for mark in self._marks[-period:] for one in mark.inputs)
        optimizers = tuple(UsedOptimizer(self._names[one], used.count(one)) for one in dict.fromkeys(used))
        steady = count > 2 and self._digest(2 * period, period) == self._digest(period, 0)
        first = len(self._marks) - period + (self._forgotten or 0)
        first_end = self._marks[period - 1].row
        return KeptStep(begin, end, count - 1, count, inputs, optimizers, steady, first, first_end)

    def _digest(self, begin: int, end: int) -> str:
        """A hash of the events between two marks, counted from the last one."""
        return self._trace.digest(self._marks[-begin - 1].row, self._marks[-end - 1].row)

    def _categorise(self, optimizer: Optimizer) -> None:
        """Says which allocations are parameters, gradients, states of optimizers, and buffers of modules."""
        modules: dict[int, str] = {}
        for root in list(self._trace.context.roots.values()):
            for name, parameter in root.named_parameters():
                module = modules.setdefault(id(parameter), path_in(root, name.rpartition(".")[0]))
                self._holds(parameter, Category.PARAMETERS, module)
            for name, buffer in root.named_buffers():
                self._holds(buffer, Category.BUFFERS, path_in(root, name.rpartition(".")[0]))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.parameters[id(parameter)] = parameter
                module = modules.get(id(parameter), "")
                self._holds(parameter, Category.PARAMETERS, module)
                if parameter.grad is not None:
                    self._holds(parameter.grad, Category.GRADIENTS, module)
                state = optimizer.state.get(parameter)
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        self._holds(value, Category.OPTIMIZER_STATES, module)

    def _holds(self, tensor: torch.Tensor, category: Category, module: str) -> None:
        local = local_part(tensor)
        block = self._arena.block(local) if local.is_cuda else None
        if block is not None:
            self._trace.holds(block.number, category, module)


def shortest_period(optimizers: Sequence[int]) -> int:
    """Steps of optimizers in a step of the script: the shortest sequence that repeats, 0 as long as none does."""
    for length in range(1, len(optimizers) // 2 + 1):
        last = optimizers[-length:]
        if last == optimizers[-2 * length : -length] and set(last) == set(optimizers):
            return length
    return 0


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that this rank has, the values of a sparse one; any other tensor itself."""
    local = getattr(tensor, "_local_tensor", tensor._values() if tensor.is_sparse else tensor)
    return local if isinstance(local, torch.Tensor) else tensor


def _merged(inputs: Iterable[ModelInput]) -> tuple[ModelInput, ...]:
    """Equal inputs as one, with the sum of their calls."""
    calls: dict[tuple[str, tuple[tuple[int, ...], ...]], int] = {}
    for one in inputs:
        calls[one.module, one.shapes] = calls.get((one.module, one.shapes), 0) + one.calls
    return tuple(ModelInput(module, shapes, count) for (module, shapes), count in calls.items())
