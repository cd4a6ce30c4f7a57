"""Values of tensors: integers and few floats are computed, many floats are not, and policies decide what depends on those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from scaleproof.validator.capture.backend.memory import Arena, Content
from scaleproof.validator.capture.backend.policies import Policy
from scaleproof.validator.capture.backend.schemas import FILLS, OperatorSchema, tensors_of

# Most elements of floats and of integers that are computed, and of floats that get an invented value.
COMPUTED_FLOATS: Final = 1 << 14
COMPUTED_INTEGERS: Final = 1 << 26
INVENTED_FLOATS: Final = 1 << 10
INVENTED_VALUE: Final = 1.0
# An invented value that a line reads this often in a step is another one from then on: small, large, negative.
_REPEATED: Final = 256
_OTHER_VALUES: Final = (1e-9, 500.0, -500.0)
# Operators that the CPU has for floats alone, and GPUs for integers too.
_ONLY_FLOATS: Final = {"aten::histc"}
_RANDOM: Final = {"aten::normal_", "aten::uniform_", "aten::bernoulli_", "aten::exponential_", "aten::log_normal_"}


class Values:
    """What is known of tensors in an arena.

    policy: of integers that unknown floats decide. answer: called with an operator and a text for each value that is not
    computed; returns how often it was in this step, at the same line. of_collective: called with the collective that a value
    comes from which the script reads.
    """

    def __init__(
        self, arena: Arena, policy: Policy, answer: Callable[[str, str], int], of_collective: Callable[[str], None]
    ) -> None:
        self.arena, self.policy, self._answer, self._of_collective = arena, policy, answer, of_collective

    def content(self, tensor: torch.Tensor) -> Content:
        """What is known of a tensor's values."""
        if tensor.device.type == "meta":
            return Content.UNKNOWN
        if not tensor.is_cuda or not tensor.numel():
            return Content.EXACT
        block = self.arena.block(tensor)
        return block.content if block is not None else Content.UNKNOWN

    def collective(self, tensor: torch.Tensor) -> str:
        """The collective that known values of a tensor come from, to which other ranks contributed what this one did."""
        block = self.arena.block(tensor) if tensor.is_cuda else None
        return block.collective if block is not None and block.content is Content.EXACT else ""

    def set_content(self, tensors: Sequence[torch.Tensor], content: Content, collective: str = "") -> None:
        """Sets what is known of tensors. Few unknown floats get an invented value. collective: see `collective`."""
        for tensor in tensors:
            block = self.arena.block(tensor) if tensor.is_cuda else None
            if block is None:
                continue
            block.collective = collective
            is_few = tensor.dtype.is_floating_point and tensor.numel() <= INVENTED_FLOATS and _whole(block.size, tensor)
            if content is Content.UNKNOWN and is_few:
                self.arena.on_host(tensor).fill_(INVENTED_VALUE)
                block.content = Content.INVENTED
            else:
                block.content = content

    def fill(self, tensor: torch.Tensor, values: torch.Tensor, operator: str, policy: str) -> None:
        """Gives a tensor values that a policy decides."""
        self.arena.on_host(tensor).copy_(values)
        block = self.arena.block(tensor)
        if block is not None:
            block.content = Content.INVENTED
        self._answer(operator, policy)

    def item(self, tensor: torch.Tensor) -> Any:
        """The one value of a tensor."""
        content = self.content(tensor)
        unknown = INVENTED_VALUE if tensor.dtype.is_floating_point else 0
        value = unknown if content is Content.UNKNOWN else self.arena.on_host(tensor).item()
        if content is Content.EXACT:
            if collective := self.collective(tensor):
                self._of_collective(collective)
            return value
        times = self._answer("aten::_local_scalar_dense", "an invented value")
        # a loop that ends when floats have some value ends with another one
        turn = times // _REPEATED % (1 + len(_OTHER_VALUES))
        if not turn:
            return value
        if tensor.dtype is torch.bool:
            return bool(value) ^ bool(turn % 2)
        return _OTHER_VALUES[turn - 1] if tensor.dtype.is_floating_point else value

    def decided(self, operator: str, policy: str) -> None:
        """Counts a decision of a policy."""
        self._answer(operator, policy)

    def computes(self, schema: OperatorSchema, tensors: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an operator's values are computed: they are known, and few."""
        if schema.name in _RANDOM:
            return all(tensor.numel() <= INVENTED_FLOATS for tensor in tensors)
        known = schema.name in FILLS or all(self.content(tensor) is not Content.UNKNOWN for tensor in inputs)
        return known and all(_is_small(tensor) for tensor in tensors)

    def compute(self, operator: torch._ops.OpOverload, schema: OperatorSchema, call: tuple[Any, Any], inputs: Any) -> Any:
        """Computes an operator on the CPU. call: arguments and keywords. Returns its results on the device."""
        contents = [self.content(tensor) for tensor in inputs] if schema.name not in FILLS else []
        content = Content.INVENTED if Content.INVENTED in contents else Content.EXACT
        collective = next(filter(None, map(self.collective, inputs)), "") if schema.name not in FILLS else ""
        aliases: dict[int, torch.Tensor] = {}

        def on_host(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_cuda:
                if id(value) not in aliases:
                    alias = self.arena.on_host(value)
                    aliases[id(value)] = alias.double() if schema.name in _ONLY_FLOATS else alias
                return aliases[id(value)]
            return torch.device("cpu") if isinstance(value, torch.device) else value

        arguments, keywords = tree_map(on_host, call)
        results = operator(*arguments, **keywords)
        written = schema.writes(*call)
        for tensor in tensors_of(written):
            alias = aliases.get(id(tensor))
            if alias is not None and alias.shape != tensor.shape:
                resized = self._copied(alias, content, collective)
                self.arena.move(tensor, resized, resized.size(), resized.stride())
            self.set_content([tensor], content, collective)
        if written:
            return returned(schema, written)
        if schema.name in _ONLY_FLOATS:
            results = tree_map(lambda value: value.to(inputs[0].dtype), results)
        return tree_map(
            lambda value: self._copied(value, content, collective) if isinstance(value, torch.Tensor) else value, results
        )

    def _copied(self, host: torch.Tensor, content: Content, collective: str) -> torch.Tensor:
        copied = self.arena.empty(host.size(), host.stride(), host.dtype)
        self.arena.on_host(copied).copy_(host)
        self.set_content([copied], content, collective)
        return copied

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies what is known of a tensor's values to another one."""
        is_known = self.content(source) is not Content.UNKNOWN and (source.is_cuda or _is_small(source))
        if not target.is_cuda:
            if is_known:
                target.copy_(self.arena.on_host(source))
            elif target.numel() <= INVENTED_FLOATS:
                target.fill_(INVENTED_VALUE if target.dtype.is_floating_point else 0)
            if self.content(source) is not Content.EXACT:
                self._answer("aten::copy_", "an invented value")
            elif collective := self.collective(source):
                self._of_collective(collective)
            return
        block = self.arena.block(target)
        if block is None:
            return
        if not is_known:
            self.set_content([target], Content.UNKNOWN)
            return
        self.arena.on_host(target).copy_(self.arena.on_host(source) if source.is_cuda else source)
        block.collective = self.collective(source) or (block.collective if not _whole(block.size, target) else "")
        if _whole(block.size, target):
            block.content = self.content(source)
        elif block.content is Content.UNKNOWN and not target.dtype.is_floating_point:
            # integers that are written part by part
            block.content = self.content(source)


def returned(schema: OperatorSchema, written: Sequence[Any]) -> Any:
    """What an operator returns that writes arguments."""
    if not schema.returns:
        return None
    return written[0] if schema.returns == 1 else tuple(written)


def _whole(block_bytes: int, tensor: torch.Tensor) -> bool:
    """Whether a tensor covers at least half of its allocation."""
    return 2 * tensor.numel() * tensor.element_size() >= block_bytes


def _is_small(tensor: torch.Tensor) -> bool:
    limit = COMPUTED_FLOATS if tensor.dtype.is_floating_point or tensor.dtype.is_complex else COMPUTED_INTEGERS
    return tensor.numel() <= limit
